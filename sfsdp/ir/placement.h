// SPDX-License-Identifier: BSD-3-Clause
// Where a value lies on one mesh axis. DTensor's words, and Own.
#pragma once

#include <cstdint>

namespace sfsdp::ir {

enum class ReduceOp : uint8_t { Sum, Max, Min };

struct Placement {
  enum class Kind : uint8_t {
    Replicate,  // the same on every rank
    Shard,      // each rank holds a part, cut in dimension `dim`
    Partial,    // each rank holds a contribution; `reduce` over the axis makes the value
    Own,        // each rank holds its own batch's value (activations on data axes)
  };
  Kind kind = Kind::Replicate;
  int64_t dim = 0;
  ReduceOp reduce = ReduceOp::Sum;

  static constexpr Placement replicate() { return {}; }
  static constexpr Placement shard(int64_t dim) { return {Kind::Shard, dim, ReduceOp::Sum}; }
  bool operator==(const Placement&) const = default;
};

}  // namespace sfsdp::ir
