// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/kernels.h"

#include "sfsdp/cost/op_shape.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/side_table.h"

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

const ir::Op* arithmetic_op(std::span<const ir::Op* const> kernel) {
  for (const ir::Op* op : kernel)
    if (const Class kind = class_of(*op); kind == Class::Product || kind == Class::Attention) return op;
  return nullptr;
}

std::unordered_set<const ir::Value*> values_inside(const ir::Graph& graph, const Kernels& kernels) {
  ir::ValueTable<int> made_by(graph, -1);          // the kernel
  ir::ValueTable<uint8_t> read_outside(graph, 0);  // by another than the one that makes it
  std::vector<const ir::Value*> read_inside;
  for (size_t i = 0; i < graph.ops().size(); ++i) {
    const ir::Op& op = *graph.ops()[i];
    if (ir::aliased_operand(op) >= 0) continue;
    const int kernel = kernels.of[i];
    for (const ir::Value* operand : op.operands) {
      if (!operand) continue;
      const ir::Value* storage = ir::storage_of(operand);
      if (kernel >= 0 && made_by[storage] == kernel)
        read_inside.push_back(storage);
      else
        read_outside[storage] = 1;
    }
    if (kernel >= 0)
      for (const auto& result : op.results()) made_by[result.get()] = kernel;
    if (op.is("accumulate") && graph.micro_batches > 1) read_outside[op.result()] = 1;  // by the next micro-batch
  }
  for (const ir::Value* output : graph.outputs) read_outside[ir::storage_of(output)] = 1;
  for (const ir::Carry& carry : graph.carries) read_outside[ir::storage_of(carry.next)] = 1;
  std::unordered_set<const ir::Value*> inside;
  for (const ir::Value* value : read_inside)
    if (read_outside[value] == 0) inside.insert(value);
  return inside;
}

}  // namespace sfsdp::cost
