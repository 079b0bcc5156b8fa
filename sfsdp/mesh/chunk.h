// SPDX-License-Identifier: BSD-3-Clause
// torch.chunk's rule, by which Shard(d) cuts a dimension: ceil(n/world) elements to each rank, the last one that gets
// any may get fewer, the ranks after it get none. 5 over 4 ranks: 2, 2, 1, 0.
#pragma once

#include <algorithm>
#include <cstdint>

#include "sfsdp/base/check.h"

namespace sfsdp {

// The elements [offset, offset + length) of a dimension. An empty chunk lies at the end: its offset is n.
struct Chunk {
  int64_t offset = 0;
  int64_t length = 0;
  bool operator==(const Chunk&) const = default;
};

constexpr int64_t ceil_div(int64_t n, int64_t divisor) { return (n + divisor - 1) / divisor; }

// What rank `index` of `world` gets of n elements.
inline Chunk chunk_of(int64_t n, int64_t world, int64_t index) {
  SFSDP_CHECK(n >= 0 && world >= 1 && index >= 0 && index < world, "n ", n, ", world ", world, ", index ", index);
  const int64_t full = ceil_div(n, world);
  const int64_t offset = std::min(index * full, n);
  return {offset, std::min(full, n - offset)};
}

constexpr int64_t round_up(int64_t n, int64_t multiple) { return ceil_div(n, multiple) * multiple; }

// n rounded up so that every rank's chunk has the same length: what a collective of equal pieces sends.
constexpr int64_t padded_length(int64_t n, int64_t world) { return round_up(n, world); }

}  // namespace sfsdp
