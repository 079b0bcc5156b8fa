// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/registers.h"

#include <unordered_map>

#include "sfsdp/base/check.h"

namespace sfsdp::cost {

std::unordered_set<const ir::Value*> values_in_registers(const ir::Graph& graph, const KernelTable& kernels) {
  SFSDP_CHECK(kernels.kernel_of.size() == graph.ops().size(), kernels.kernel_of.size(),
              " places of ops, the graph has ", graph.ops().size());
  std::unordered_map<const ir::Value*, int> made_by;
  std::unordered_set<const ir::Value*> read, outside;
  std::unordered_map<const ir::Op*, int> kernel_of;  // also of casts that stand before the kernel which computes them
  for (size_t k = 0; k < kernels.kernels.size(); ++k)
    for (const ir::Op* op : kernels.kernels[k].ops) kernel_of.emplace(op, static_cast<int>(k));
  for (const auto& each : graph.ops()) {
    const ir::Op& op = *each;
    const auto computed = kernel_of.find(&op);
    const int kernel = computed == kernel_of.end() ? -1 : computed->second;
    for (const ir::Value* operand : op.operands) {
      if (!operand) continue;
      read.insert(operand);
      if (made_by.at(operand) != kernel) outside.insert(operand);
    }
    for (const auto& result : op.results()) made_by.emplace(result.get(), kernel);
  }
  for (const ir::Value* output : graph.outputs) outside.insert(output);
  for (const ir::Carry& carry : graph.carries) outside.insert(carry.next);
  std::unordered_set<const ir::Value*> inside;
  for (const auto& [value, kernel] : made_by)
    if (kernel >= 0 && read.contains(value) && !outside.contains(value)) inside.insert(value);
  return inside;
}

}  // namespace sfsdp::cost
