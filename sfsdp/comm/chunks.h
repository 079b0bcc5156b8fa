// SPDX-License-Identifier: BSD-3-Clause
// Spans of bytes, copied and cut.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace sfsdp::comm {

// `to` is of the same size; they may be one and the same, or overlap.
inline void copy(std::span<const std::byte> from, std::span<std::byte> to) {
  if (!to.empty() && from.data() != to.data()) std::memmove(to.data(), from.data(), to.size());
}

// How an all-reduce cuts its elements among the ranks: equal chunks, the last ones shorter or empty. As every element
// is summed in rank order, the cut does not show in the result.
class ByteChunks {
 public:
  ByteChunks(size_t bytes, int64_t element_bytes, int parts) : bytes_(bytes) {
    const auto element = static_cast<size_t>(element_bytes), n = static_cast<size_t>(parts);
    chunk_ = (bytes / element + n - 1) / n * element;
  }
  size_t begin(int part) const { return std::min(bytes_, static_cast<size_t>(part) * chunk_); }
  size_t size(int part) const { return begin(part + 1) - begin(part); }
  template <class Byte>
  std::span<Byte> of(std::span<Byte> whole, int part) const {
    return whole.subspan(begin(part), size(part));
  }

 private:
  size_t bytes_;
  size_t chunk_;
};

}  // namespace sfsdp::comm
