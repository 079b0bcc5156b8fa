// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/models/exported/exported_graph.h"

#include <c10/util/Exception.h>

#include <map>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/module_scope.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/exported/printable.h"
#include "sfsdp/models/exported/exported_call.h"

namespace sfsdp::models {
namespace {

// What an op says may quote texts of the archive.
std::string in_lines(const char* text) {
  constexpr size_t kMaxLineBytes = 500;
  std::vector<std::string> lines = split(text, '\n');
  for (std::string& line : lines) line = exported::printable(line, kMaxLineBytes);
  return join(lines, "\n");
}

void store_result(const exported::Argument& output, const c10::IValue& value, Values& values,
                  const exported::Node& node) {
  if (const auto* one = std::get_if<exported::ValueArgument>(&output)) {
    if (one->slot != exported::kNone) values[static_cast<size_t>(one->slot)] = value;
  } else if (const auto* list = std::get_if<exported::ValuesArgument>(&output)) {
    if (!value.isList() || value.toListRef().size() != list->slots.size())
      throw UserError(concat(describe(node), " gives ", value.isList() ? value.toListRef().size() : 0,
                             " tensors in a list\n  expected ", list->slots.size(), ", as the archive has it"));
    for (size_t i = 0; i < list->slots.size(); ++i)
      if (list->slots[i] != exported::kNone) values[static_cast<size_t>(list->slots[i])] = value.toListRef()[i];
  }
}

}  // namespace

ExportedGraph::ExportedGraph(const exported::Graph& graph) : graph_(graph) {
  for (const exported::Node& node : graph.nodes) calls_.push_back(make_call(node));
}
ExportedGraph::~ExportedGraph() = default;
ExportedGraph::ExportedGraph(ExportedGraph&&) noexcept = default;

std::vector<c10::IValue> ExportedGraph::run(std::span<const c10::IValue> inputs, bool training) const {
  SFSDP_CHECK(inputs.size() == graph_.inputs.size(), inputs.size(), " inputs for ", graph_.inputs.size());
  Values values(graph_.values.size());
  for (size_t i = 0; i < inputs.size(); ++i)
    if (graph_.inputs[i] != exported::kNone) values[static_cast<size_t>(graph_.inputs[i])] = inputs[i];
  for (size_t i = 0; i < calls_.size(); ++i) {
    const exported::Node& node = graph_.nodes[i];
    const ModuleScope scope(node.module_path);
    Values results;
    try {
      results = calls_[i]->run(values, training);
    } catch (const UserError& error) {
      if (node.python.empty() || std::string_view(error.what()).find(node.python) != std::string_view::npos) throw;
      throw UserError(concat(error.what(), "\n  Python: ", node.python));
    } catch (const c10::Error& error) {
      throw UserError(concat(describe(node), ": ", in_lines(error.what_without_backtrace()),
                             "\n  expected a batch of the sizes that the model was exported for"));
    }
    if (results.size() != node.outputs.size())
      throw UserError(concat(describe(node), " gives ", results.size(), " results\n  expected ", node.outputs.size(),
                             ", as the archive has it"));
    for (size_t r = 0; r < results.size(); ++r) store_result(node.outputs[r], results[r], values, node);
  }
  std::vector<c10::IValue> outputs;
  for (const exported::Argument& output : graph_.outputs) outputs.push_back(plain_value(output, values));
  return outputs;
}

namespace {

void for_slots(const exported::Argument& argument, const std::function<void(exported::Slot)>& visit) {
  if (const auto* one = std::get_if<exported::ValueArgument>(&argument)) visit(one->slot);
  if (const auto* list = std::get_if<exported::ValuesArgument>(&argument))
    for (const exported::Slot slot : list->slots) visit(slot);
}

// "torch.ops.aten.add.Tensor": "aten::add", "Tensor". Empty for what is none of LibTorch, and for assertions, which are not called.
std::pair<std::string, std::string> aten_name(const std::string& target) {
  constexpr std::string_view kAten = "torch.ops.aten.";
  if (!target.starts_with(kAten) || target.starts_with("torch.ops.aten._assert_")) return {};
  const std::string op = target.substr(kAten.size());
  const size_t dot = op.find('.');
  const std::string overload = dot == std::string::npos ? "" : op.substr(dot + 1);
  return {"aten::" + op.substr(0, dot), overload == "default" ? "" : overload};
}

}  // namespace

std::vector<std::string> reasons_against(const exported::Graph& graph, const std::set<exported::Slot>& constants,
                                         const WhyNotCaptured& why_not_captured) {
  std::map<std::string, std::string> by_op;  // its first node
  std::set<exported::Slot> varying;          // with the batch or with what is trained
  for (const exported::Slot slot : graph.inputs)
    if (slot != exported::kNone && !constants.contains(slot)) varying.insert(slot);
  for (const exported::Node& node : graph.nodes) {
    bool varies = false;
    for (const exported::NamedArgument& input : node.inputs)
      for_slots(input.value, [&](exported::Slot slot) {
        varies |= varying.contains(slot) && graph.values[static_cast<size_t>(slot)].tensor;
      });
    if (varies)
      for (const exported::Argument& output : node.outputs)
        for_slots(output, [&](exported::Slot slot) { varying.insert(slot); });
    try {
      (void)make_call(node);
      const auto [name, overload] = aten_name(node.target);
      const std::string reason = varies && !name.empty() ? why_not_captured(name, overload) : "";
      if (!reason.empty()) by_op.emplace(node.target, concat(describe(node), " ", reason));
    } catch (const UserError& error) {
      by_op.emplace(node.target, error.what());
    }
  }
  std::vector<std::string> reasons;
  for (const auto& [target, reason] : by_op) reasons.push_back(reason);
  return reasons;
}

}  // namespace sfsdp::models
