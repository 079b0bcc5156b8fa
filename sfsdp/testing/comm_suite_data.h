// SPDX-License-Identifier: BSD-3-Clause
// What the ranks of comm_suite contribute, by formula, and what must come of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/comm/communicator.h"
#include "sfsdp/comm/reduce.h"

namespace sfsdp::testing {

using Bytes = std::vector<std::byte>;

inline std::vector<int> all_ranks(const comm::CommWorld& world) {
  std::vector<int> ranks(static_cast<size_t>(world.world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// What a rank contributes: any bits at all, nans and infinities too, so that equal results are equal bits.
Bytes contribution(int rank, size_t bytes);

inline Bytes slice(const Bytes& data, size_t begin, size_t bytes) {
  const auto first = data.begin() + static_cast<std::ptrdiff_t>(begin);
  return {first, first + static_cast<std::ptrdiff_t>(bytes)};
}

//   throws: InternalError that names the first byte that differs
void check_equal(std::span<const std::byte> got, const Bytes& expected, const std::string& what);

// The sum over the ranks' contributions of `bytes`, cut to [begin, begin + out_bytes).
inline Bytes expected_sum(const std::vector<int>& ranks, size_t bytes, size_t begin, size_t out_bytes, ir::DType dtype,
                          comm::ReduceOp op) {
  std::vector<Bytes> parts;
  for (const int r : ranks) parts.push_back(slice(contribution(r, bytes), begin, out_bytes));
  const std::vector<std::span<const std::byte>> spans(parts.begin(), parts.end());
  Bytes sum(out_bytes);
  comm::reduce(spans, sum, dtype, op);
  return sum;
}

}  // namespace sfsdp::testing
