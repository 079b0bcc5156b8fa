// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/optim/own_loss.h"

#include "sfsdp/base/check.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::step {
namespace {

// What the ranks add up to `value`; `value` itself where they do not.
const ir::Value* before_reduction(const ir::Value* value) {
  const ir::Op* op = value->producer();
  if (op->is("wait")) op = op->operands[0]->producer();
  return ir::collective_kind(*op) == "all_reduce" ? op->operands[0] : value;
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
