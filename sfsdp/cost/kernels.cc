// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/kernels.h"

#include <unordered_map>

#include "sfsdp/cost/op_shape.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::cost {

Kernels kernels_of(const ir::Graph& graph) {
  Kernels kernels;
  kernels.of.reserve(graph.ops().size());
  const int64_t* last = nullptr;  // the number of the last kernel, if it has one
  for (const auto& op : graph.ops()) {
    const Class kind = class_of(*op);
    if (kind == Class::Free || kind == Class::Communication) {
      kernels.of.push_back(-1);
      continue;
    }
    const auto* number = op->find_attr<int64_t>("kernel");
    if (!number || !last || *number != *last) kernels.ops.emplace_back();
    last = number;
    kernels.ops.back().push_back(op.get());
    kernels.of.push_back(static_cast<int>(kernels.ops.size()) - 1);
  }
  return kernels;
}

std::unordered_set<const ir::Value*> values_inside(const ir::Graph& graph, const Kernels& kernels) {
  std::unordered_map<const ir::Value*, int> made_by;
  std::unordered_set<const ir::Value*> inside, outside;  // read by the kernel that makes them; by others
  for (size_t i = 0; i < graph.ops().size(); ++i) {
    const ir::Op& op = *graph.ops()[i];
    if (ir::aliased_operand(op) >= 0) continue;
    const int kernel = kernels.of[i];
    for (const ir::Value* operand : op.operands) {
      if (!operand) continue;
      const ir::Value* storage = ir::storage_of(operand);
      const auto made = made_by.find(storage);
      (kernel >= 0 && made != made_by.end() && made->second == kernel ? inside : outside).insert(storage);
    }
    if (kernel >= 0)
      for (const auto& result : op.results()) made_by.emplace(result.get(), kernel);
  }
  for (const ir::Value* output : graph.outputs) outside.insert(ir::storage_of(output));
  for (const ir::Carry& carry : graph.carries) outside.insert(ir::storage_of(carry.next));
  for (const ir::Value* value : outside) inside.erase(value);
  return inside;
}

}  // namespace sfsdp::cost
