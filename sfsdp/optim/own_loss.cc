// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/optim/own_loss.h"

#include <algorithm>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/mesh/model_axis.h"

namespace sfsdp::step {
namespace {

// What ranks of other samples add up to `value`; `value` itself where they do not. Ranks along a model axis add up one loss.
const ir::Value* before_reduction(const ir::Value* value) {
  const ir::Op* op = value->producer();
  if (op->is("wait")) op = op->operands[0]->producer();
  if (ir::collective_kind(*op) != "all_reduce") return value;
  const auto axes = ir::axes_of(*op);
  return axes && std::ranges::any_of(*axes, is_model_axis) ? value : op->operands[0];
}

}  // namespace

OwnLoss own_loss(const ir::Graph& graph, int64_t data_ranks) {
  SFSDP_CHECK(!graph.outputs.empty(), "a graph without a loss");
  const ir::Op& last = *graph.outputs[0]->producer();
  if (last.is("div")) return {before_reduction(last.operands[0]), before_reduction(last.operands[1]), 1};
  const ir::Value* sum = before_reduction(graph.outputs[0]);
  return {sum, nullptr, sum == graph.outputs[0] ? 1.0 : static_cast<double>(data_ranks)};
}

}  // namespace sfsdp::step
