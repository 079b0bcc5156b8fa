// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/checkpoints.h"

#include <algorithm>
#include <string>
#include <unordered_set>

#include "sfsdp/base/check.h"
#include "sfsdp/cost/op_shape.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::cost {
namespace {

using ir::Op, ir::Section, ir::Value;

bool computes(const Op& op) {
  const Class kind = class_of(op);
  return kind != Class::Free && kind != Class::Communication && !ir::block_of(op.module_path).empty();
}

// Ops of backward that neither compute a gradient nor read one, in order.
std::vector<const Op*> recomputed_ops(const ir::Graph& graph) {
  std::vector<const Op*> ops;
  std::unordered_set<const Value*> gradients;
  for (const auto& op : graph.ops()) {
    if (op->section != Section::Bwd) continue;
    const bool reads_gradient =
        std::ranges::any_of(op->operands, [&](const Value* v) { return gradients.contains(v); });
    if (op->bwd_of || reads_gradient)
      for (const auto& result : op->results()) gradients.insert(result.get());
    else if (computes(*op))
      ops.push_back(op.get());
  }
  return ops;
}

std::string place_of(const Op& op) { return concat(op.opcode, " at ", op.module_path); }

}  // namespace

std::unordered_map<const Op*, std::vector<const Op*>> run_again_unread(const ir::Graph& graph) {
  std::unordered_map<std::string, const Op*> last_of_block;
  std::unordered_map<std::string, int64_t> again;  // by place: ops that are computed again
  for (const Op* op : recomputed_ops(graph)) {
    if (op->is("cast") && ir::is_root(*op->operands[0]->producer())) continue;  // of a shard, to be gathered
    last_of_block[std::string(ir::block_of(op->module_path))] = op;
    ++again[place_of(*op)];
  }
  std::unordered_map<const Op*, std::vector<const Op*>> unread;
  for (const auto& op : graph.ops()) {
    if (op->section != Section::Fwd || !computes(*op)) continue;
    if (op->is("cast") && ir::is_root(*op->operands[0]->producer())) continue;
    const auto block = last_of_block.find(std::string(ir::block_of(op->module_path)));
    if (block != last_of_block.end() && again[place_of(*op)]-- <= 0) unread[block->second].push_back(op.get());
  }
  return unread;
}

}  // namespace sfsdp::cost
