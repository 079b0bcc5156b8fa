// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/analysis/own_memory.h"

#include "sfsdp/ir/opset.h"

namespace sfsdp::passes {

std::set<const ir::Value*> own_memory(const ir::Graph& graph) {
  std::set<const ir::Value*> own;
  for (const ir::Carry& carry : graph.carries) own.insert(ir::storage_of(carry.next));
  for (const auto& op : graph.ops())
    for (const int64_t index : ir::donated_operands(*op))
      own.insert(ir::storage_of(op->operands[static_cast<size_t>(index)]));
  return own;
}

}  // namespace sfsdp::passes
