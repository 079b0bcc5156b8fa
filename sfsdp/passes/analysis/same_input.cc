// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/analysis/same_input.h"

#include <map>

#include "sfsdp/ir/opset.h"

namespace sfsdp::passes {

ir::Value* shown_value(ir::Value* value) {
  while (ir::Value* below = ir::reshaped_operand(*value)) value = below;
  return value;
}

std::vector<std::vector<ir::Op*>> ops_of_one_input(const ir::Graph& graph, const char* opcode, int operand) {
  std::vector<std::vector<ir::Op*>> groups;
  std::map<std::pair<ir::Section, const ir::Value*>, size_t> by_input;
  for (const auto& op : graph.ops()) {
    if (!op->is(opcode)) continue;
    ir::Value* input = operand < 0 ? op->operands.back() : op->operands[static_cast<size_t>(operand)];
    const auto [at, fresh] = by_input.emplace(std::pair(op->section, shown_value(input)), groups.size());
    if (fresh) groups.emplace_back();
    groups[at->second].push_back(op.get());
  }
  std::erase_if(groups, [](const auto& group) { return group.size() < 2; });
  return groups;
}

}  // namespace sfsdp::passes
