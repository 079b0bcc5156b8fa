// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exported/grad_marks.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "sfsdp/ir/graph.h"

namespace sfsdp::exported {
namespace {

const Graph* graph_of(const NamedArgument& argument) {
  const auto* graph = std::get_if<std::shared_ptr<const Graph>>(&argument.value);
  return graph ? graph->get() : nullptr;
}

void add_slots(const Argument& argument, std::vector<Slot>& slots) {
  if (const auto* value = std::get_if<ValueArgument>(&argument)) slots.push_back(value->slot);
  if (const auto* values = std::get_if<ValuesArgument>(&argument))
    slots.insert(slots.end(), values->slots.begin(), values->slots.end());
}

// Blocks of the nodes that are marked, or inside of a node that torch calls by that name.
void add_checkpointed(const Graph& graph, bool inside, const std::set<std::string, std::less<>>& blocks,
                      std::vector<std::string>& found) {
  for (const Node& node : graph.nodes) {
    const bool is_marked = inside || node.checkpointed || node.target.ends_with(".tag_activation_checkpoint");
    const std::string_view block = ir::block_of(node.module_path);
    if (is_marked && blocks.contains(block) && std::ranges::find(found, block) == found.end())
      found.emplace_back(block);
    for (const NamedArgument& argument : node.inputs)
      if (const Graph* part = graph_of(argument)) add_checkpointed(*part, is_marked, blocks, found);
  }
}

// How state tensors are read, by place.
struct Reads {
  std::set<size_t> with_grad, without_grad;
};

// of: the state tensors among the graph's values, by slot
void add_reads(const Graph& graph, const std::map<Slot, size_t>& of, bool grad, Reads& reads) {
  for (const Node& node : graph.nodes) {
    const auto part = std::ranges::find_if(node.inputs, [](const NamedArgument& a) { return graph_of(a) != nullptr; });
    std::vector<Slot> slots;
    for (auto it = part == node.inputs.end() ? node.inputs.begin() : part + 1; it != node.inputs.end(); ++it)
      add_slots(it->value, slots);
    if (part == node.inputs.end()) {
      for (const Slot slot : slots)
        if (const auto found = of.find(slot); found != of.end())
          (grad ? reads.with_grad : reads.without_grad).insert(found->second);
      continue;
    }
    const Graph& inner = *graph_of(*part);
    std::map<Slot, size_t> given;
    for (size_t i = 0; i < std::min(slots.size(), inner.inputs.size()); ++i)
      if (const auto found = of.find(slots[i]); found != of.end()) given.emplace(inner.inputs[i], found->second);
    const auto* flag = node.inputs.empty() ? nullptr : std::get_if<bool>(&node.inputs[0].value);
    const bool turns_off = node.target.ends_with(".wrap_with_set_grad_enabled") && flag && !*flag;
    add_reads(inner, given, grad && !turns_off, reads);
  }
  // An output of a graph is read by whoever takes it, with gradients if they are on here.
  std::vector<Slot> outputs;
  for (const Argument& output : graph.outputs) add_slots(output, outputs);
  for (const Slot slot : outputs)
    if (const auto found = of.find(slot); found != of.end() && grad) reads.with_grad.insert(found->second);
}

}  // namespace

std::vector<std::string> checkpointed_blocks(const Contents& program) {
  std::set<std::string, std::less<>> blocks;
  for (const StateTensor& tensor : program.state)
    if (tensor.kind == StateTensor::Kind::Parameter) blocks.emplace(ir::block_of(tensor.name));
  blocks.erase("");
  std::vector<std::string> found;
  add_checkpointed(program.graph, false, blocks, found);
  return found;
}

std::vector<size_t> parameters_without_grad(const Contents& program) {
  std::map<Slot, size_t> of;
  for (const auto& [slot, place] : program.state_inputs) of.emplace(slot, place);
  Reads reads;
  add_reads(program.graph, of, true, reads);
  // Two names of one tensor are one parameter.
  std::vector<size_t> without;
  for (const size_t place : reads.without_grad) {
    const StateTensor& tensor = program.state[place];
    const bool elsewhere = std::ranges::any_of(
        reads.with_grad, [&](size_t other) { return other == place || is_tied(program.state[other], tensor); });
    if (tensor.kind == StateTensor::Kind::Parameter && !elsewhere) without.push_back(place);
  }
  return without;
}

}  // namespace sfsdp::exported
