// SPDX-License-Identifier: BSD-3-Clause
// Where a value lies on one mesh axis. DTensor's words, and Own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sfsdp::ir {

enum class ReduceOp : uint8_t { Sum, Max, Min };

// "sum"; the spelling of the text form.
std::string_view to_string(ReduceOp op);
std::optional<ReduceOp> parse_reduce_op(std::string_view text);

struct Placement {
  enum class Kind : uint8_t {
    Replicate,  // the same on every rank
    Shard,      // each rank holds a part, cut in dimension `dim`
    Partial,    // each rank holds a contribution; `reduce` over the axis makes the value
    Own,        // each rank holds its own batch's value (activations on data axes)
    Rows,  // of dimension `dim` each rank holds a range that memory says (own_rows), in front, and nothing after it
  };
  Kind kind = Kind::Replicate;
  int64_t dim = 0;
  ReduceOp reduce = ReduceOp::Sum;
  // A Shard's dimension is as many equal ranges, each of which is cut: where a sequence is cut, and samples are joined with it to
  // rows, [4, 12] cut in dimension 1 is [48] cut in 4 blocks. DTensor's strided shard.
  int64_t blocks = 1;  // partition also counts by it which offsets Rows are by

  static constexpr Placement replicate() { return {}; }
  static constexpr Placement shard(int64_t dim, int64_t blocks = 1) {
    return {Kind::Shard, dim, ReduceOp::Sum, blocks};
  }
  static constexpr Placement partial(ReduceOp reduce) { return {Kind::Partial, 0, reduce, 1}; }
  static constexpr Placement rows(int64_t dim, int64_t offsets = 1) {
    return {Kind::Rows, dim, ReduceOp::Sum, offsets};
  }
  static constexpr Placement own() { return {Kind::Own, 0, ReduceOp::Sum, 1}; }
  bool operator==(const Placement&) const = default;
};

// One placement on several mesh axes: "own(dp_replicate, dp_shard)", "sum(tp)", "rows0(ep)".
struct AxisPlacement {
  Placement placement;
  std::vector<std::string> axes;
  bool operator==(const AxisPlacement&) const = default;
};

}  // namespace sfsdp::ir
