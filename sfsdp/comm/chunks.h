// SPDX-License-Identifier: BSD-3-Clause
// Spans of bytes, copied and cut.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace sfsdp::comm {

// `to` is of the same size; they may be one and the same, or overlap.
inline void copy(std::span<const std::byte> from, std::span<std::byte> to) {
  if (!to.empty() && from.data() != to.data()) std::memmove(to.data(), from.data(), to.size());
}

// A part of a span.
struct Range {
  size_t begin = 0;
  size_t bytes = 0;

  bool operator==(const Range&) const = default;
  template <class Byte>
  std::span<Byte> of(std::span<Byte> whole) const {
    return whole.subspan(bytes == 0 ? 0 : begin, bytes);
  }
  // What of it lies in [first, first + length).
  Range within(size_t first, size_t length) const {
    const size_t from = std::max(begin, first), to = std::min(begin + bytes, first + length);
    return from < to ? Range{from, to - from} : Range{};
  }
};

// How bytes are cut among the ranks of a group: a chunk each, in rank order.
class ByteChunks {
 public:
  ByteChunks() = default;
  // Equal chunks of whole elements, the last ones shorter or empty: as an all-reduce cuts. As every element is summed in
  // rank order, the cut does not show in the result.
  ByteChunks(size_t bytes, int64_t element_bytes, int parts) : bytes_(bytes) {
    const auto element = static_cast<size_t>(element_bytes), n = static_cast<size_t>(parts);
    chunk_ = largest_ = (bytes / element + n - 1) / n * element;
  }
  // Chunks of these sizes, none below 0.
  explicit ByteChunks(std::span<const int64_t> counts) : begins_{0} {
    for (const int64_t count : counts) {
      bytes_ += static_cast<size_t>(count);
      largest_ = std::max(largest_, static_cast<size_t>(count));
      begins_.push_back(bytes_);
    }
  }

  size_t bytes() const { return bytes_; }  // all chunks together
  size_t largest() const { return largest_; }
  size_t begin(int part) const {
    const auto at = static_cast<size_t>(part);
    return begins_.empty() ? std::min(bytes_, at * chunk_) : begins_[at];
  }
  size_t size(int part) const { return begin(part + 1) - begin(part); }
  Range at(int part) const { return {begin(part), size(part)}; }
  template <class Byte>
  std::span<Byte> of(std::span<Byte> whole, int part) const {
    return whole.subspan(begin(part), size(part));
  }

 private:
  size_t bytes_ = 0;
  size_t chunk_ = 0;  // where all are equal
  size_t largest_ = 0;
  std::vector<size_t> begins_;  // else; the last is bytes_
};

}  // namespace sfsdp::comm
