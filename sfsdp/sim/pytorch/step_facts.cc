// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/sim/pytorch/step_facts.h"

#include <algorithm>

#include "sfsdp/ir/opset.h"

namespace sfsdp::sim {
namespace {

using ir::Op, ir::Section, ir::Value;

// Whether ranks have copies of all parameters and no shards: DDP.
bool is_replicated(const ir::Graph& graph) {
  const bool sharded = std::ranges::any_of(graph.ops(), [](const auto& op) {
    return op->is("param") &&
           std::ranges::any_of(op->result()->type().dims, [](const auto& d) { return !d.split.empty(); });
  });
  return !sharded && std::ranges::any_of(graph.mesh, [](const ir::MeshAxis& axis) { return axis.size > 1; });
}

// What is cast to be packed, to a wider dtype; nullptr: nothing is.
const Value* cast_source(const Value* packed) {
  const Op& made = *ir::storage_of(packed)->producer();
  if (!made.is("cast")) return nullptr;
  const Value* source = made.operands[0];
  return ir::size_in_bytes(source->type().dtype) < ir::size_in_bytes(packed->type().dtype) ? source : nullptr;
}

}  // namespace

// Gradients stay until the next step begins. A sum over micro-batches is what the first has made.
StepFacts::StepFacts(const ir::Graph& g, const PyTorchOptions& o)
    : graph(g),
      options(o),
      lifetimes(g, o),
      product_sums(o.product_sums ? cost::product_sums(g) : cost::ProductSums()) {
  keeps_whole_gradients = o.keeps_whole_gradients || is_replicated(g);
  const auto& order = lifetimes.order();
  const auto repeated = [](const Op* op) { return ir::is_repeated(op->section); };
  begin = end = static_cast<size_t>(std::ranges::find_if(order, repeated) - order.begin());
  for (size_t slot = begin; slot < order.size(); ++slot)
    if (repeated(order[slot])) end = slot + 1;
  std::unordered_set<ir::DType> of_parameters;  // dtypes in which the model has its parameters, whole
  for (const Op* op : order)
    if (op->is("param") || (ir::collective_kind(*op) == "all_gather" && !repeated(op)))
      of_parameters.insert(op->result()->type().dtype);
  for (const Op* op : order) {
    for (const Value* operand : op->operands) {
      if (!operand) continue;
      if (repeated(op)) read_by_model.insert(ir::storage_of(operand));
      if (ir::collective_kind(*op) == "all_gather") sent.insert(operand);
      if (op->is("unpack")) unpacked.insert(ir::storage_of(operand));
    }
    if (keeps_whole_gradients && op->is("pack") && op->section == Section::Bwd)
      for (const Value* operand : op->operands)
        if (const Value* narrow = cast_source(operand); narrow && of_parameters.contains(narrow->type().dtype))
          for (const Value* memory : lifetimes.memory_of(narrow)) parameter_gradients.insert(memory);
    if (op->is("gradient", "accumulate"))
      for (const Value* memory : lifetimes.memory_of(op->operands[0]))
        (op->is("gradient") ? gradients : sums).insert(memory);
  }
}

}  // namespace sfsdp::sim
