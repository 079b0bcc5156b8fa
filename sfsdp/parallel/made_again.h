// SPDX-License-Identifier: BSD-3-Clause
// What is gathered before it is expanded. A light op on wholes gives the whole: where these are half as many bytes at most, they are sent,
// and all ranks compute it. The gradient of a token's experts is that of the token, times a number for each.
#pragma once

#include <limits>
#include <unordered_set>

#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/placement.h"
#include "sfsdp/parallel/redistribute.h"

namespace sfsdp::parallel {

// State knows how values lie: placement_of(value), is_whole_made(value), is_whole_alike(value): whether the whole is there and lies in
// memory as the value does; operands_of(op).
template <class State>
class MadeAgain {
 public:
  explicit MadeAgain(const State& state) : state_(state) {}

  // Whether the whole of a value that is cut is best made by its op.
  bool is_made_again(const ir::Value& value, int depth = 0) const {
    const ir::Placement from = state_.placement_of(&value);
    return from.kind == ir::Placement::Kind::Shard && !state_.is_whole_made(&value) &&
           2 * cost_again(value, depth) <= redistribution_cost(value, from, ir::Placement::replicate(), 0);
  }
  double cost_of_whole(const ir::Value& value, int depth = 0) const {
    const ir::Placement from = state_.placement_of(&value);
    if (from == ir::Placement::replicate() || state_.is_whole_made(&value)) return 0;
    return is_made_again(value, depth) ? cost_again(value, depth)
                                       : redistribution_cost(value, from, ir::Placement::replicate(), 0);
  }

 private:
  double cost_again(const ir::Value& value, int depth) const {
    constexpr int kDeepest = 6;
    constexpr double kImpossible = std::numeric_limits<double>::infinity();
    const ir::Op& op = *value.producer();
    const ir::OpRow* row = op.opcode.row();
    const bool is_light = row && (row->cost == ir::CostClass::Free || row->cost == ir::CostClass::Pointwise);
    if (depth == kDeepest || !is_light || op.results().size() != 1 || ir::is_root(op) || ir::draws(op) ||
        ir::has_flag(op, ir::kByCoordinate) || op.has_attr("axis") || op.is("reorder"))
      return kImpossible;
    double cost = 0;
    std::unordered_set<const ir::Value*> seen;
    for (const ir::Value* operand : state_.operands_of(op)) {
      if (!operand || !seen.insert(operand).second) continue;
      // What is gathered lies in memory without gaps, which views of it would see.
      if (!operand->type().strides.empty() && state_.placement_of(operand) != ir::Placement::replicate() &&
          !state_.is_whole_alike(*operand) && !is_made_again(*operand, depth + 1))
        return kImpossible;
      cost += cost_of_whole(*operand, depth + 1);
    }
    return cost;
  }

  const State& state_;
};

}  // namespace sfsdp::parallel
