// SPDX-License-Identifier: BSD-3-Clause
// What is gathered before it is expanded. A light op on wholes gives the whole: where these are 0.7 of its bytes at most, they are sent, and
// all ranks compute it. The gradient of a token's experts is that of the token, times a number for each; a key of latent attention is a
// head's part beside one that all heads share, a value beside zeros. Bytes are those of the ranks of other axes together, as everywhere in
// partition: what these cut in the result alone counts for less than it is.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/placement.h"
#include "sfsdp/parallel/placement_kinds.h"
#include "sfsdp/parallel/redistribute.h"

namespace sfsdp::parallel {

// State knows how values lie: placement_of(value), is_whole_made(value), is_whole_alike(value): whether the whole is there and lies in
// memory as the value does; operands_of(op).
template <class State>
class MadeAgain {
 public:
  explicit MadeAgain(const State& state) : state_(state) {}

  // Whether the whole of a value that is cut is best made by its op.
  bool is_made_again(const ir::Value& value) const { return whole_of(value, 0).by_op; }
  double cost_of_whole(const ir::Value& value) const { return whole_of(value, 0).cost; }

 private:
  struct Whole {
    bool by_op = false;
    double cost = 0;
  };

  // Each op is asked once for what its operands cost: asked for both answers one by one, they would be walked three times at each depth.
  Whole whole_of(const ir::Value& value, int depth) const {
    const ir::Placement from = state_.placement_of(&value);
    if (from == kWhole || state_.is_whole_made(&value)) return {};
    const double sent = redistribution_cost(value, from, kWhole, 0);
    if (from.kind != ir::Placement::Kind::Shard) return {false, sent};
    const double again = cost_again(value, depth);
    // For all machines: within a node an H100 sends three tenths of a value in as long as it reads and writes all of it, over slower links less.
    return 10 * again <= 7 * sent ? Whole{true, again} : Whole{false, sent};
  }

  double cost_again(const ir::Value& value, int depth) const {
    constexpr int kDeepest = 6;
    constexpr double kImpossible = std::numeric_limits<double>::infinity();
    const ir::Op& op = *value.producer();
    const ir::OpRow* row = op.opcode.row();
    const bool is_light = row && (row->cost == ir::CostClass::Free || row->cost == ir::CostClass::Pointwise);
    if (depth == kDeepest || !is_light || op.results().size() != 1 || ir::is_root(op) || ir::draws(op) ||
        ir::has_flag(op, ir::kByCoordinate) || op.has_attr("axis") || op.is("reorder"))
      return kImpossible;
    // What is gathered lies in memory without gaps. Views of it would see that, and so would results that lie as their operands do.
    const bool sees_gaps = row->alias != ir::Alias::Fresh || !value.type().strides.empty();
    double cost = 0;
    const std::vector<ir::Value*>& operands = state_.operands_of(op);
    for (auto operand = operands.begin(); operand != operands.end(); ++operand) {
      if (!*operand || std::find(operands.begin(), operand, *operand) != operand) continue;
      const Whole whole = whole_of(**operand, depth + 1);
      if (sees_gaps && !(*operand)->type().strides.empty() &&
          state_.placement_of(*operand) != ir::Placement::replicate() && !state_.is_whole_alike(**operand) &&
          !whole.by_op)
        return kImpossible;
      cost += whole.cost;
    }
    return cost;
  }

  const State& state_;
};

}  // namespace sfsdp::parallel
