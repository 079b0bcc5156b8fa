// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exported/describe.h"

#include <algorithm>
#include <map>
#include <set>

#include "sfsdp/base/check.h"
#include "sfsdp/base/hash.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/exported/read_values.h"

namespace sfsdp::exported {
namespace {

std::string size_text(const Program& program, const SymInt& size) {
  if (size.expr.empty()) return std::to_string(size.value);
  const auto range = std::ranges::find(program.ranges, size.expr, &Program::Range::symbol);
  if (range == program.ranges.end() || (!range->min && !range->max)) return size.expr;
  return concat(size.expr, " of ", range->min ? std::to_string(*range->min) : "0", " to ",
                range->max ? std::to_string(*range->max) : "any");
}

std::string type_text(const Program& program, const TensorMeta& meta) {
  std::vector<std::string> sizes;
  for (const SymInt& size : meta.sizes) sizes.push_back(size_text(program, size));
  return concat(ir::to_string(meta.dtype), "[", join(sizes, ", "), "]");
}

const TensorMeta* meta_of(const Program& program, const Argument& argument) {
  const auto* value = std::get_if<ValueArgument>(&argument);
  if (!value || value->slot == kNone) return nullptr;
  const auto& tensor = program.graph.values[static_cast<size_t>(value->slot)].tensor;
  return tensor ? &*tensor : nullptr;
}

std::string output_text(const Program& program, const OutputValue& output) {
  const TensorMeta* meta = meta_of(program, output.value);
  const bool scalar = meta && meta->sizes.empty() && ir::is_floating(meta->dtype);
  return concat("  ", output.name, "  ", meta ? type_text(program, *meta) : "no tensor",
                scalar ? "  could be model.loss" : "", "\n");
}

// What a line says of a tensor besides its path.
std::string tensor_text(const Program& program, const StateTensor& t) {
  std::string text = concat(ir::Type::tensor(t.dtype, t.sizes));
  if (t.kind == StateTensor::Kind::Parameter && !t.requires_grad) text += "  frozen";
  if (t.kind == StateTensor::Kind::Buffer) text += t.persistent ? "  buffer" : "  buffer, not in the state dict";
  if (t.kind == StateTensor::Kind::Constant) text += "  constant";
  if (!is_row_major(t)) text += "  not row by row in the file";
  const auto first = std::ranges::find_if(program.state, [&](const StateTensor& other) { return is_tied(other, t); });
  if (first->name != t.name) text += concat("  tied to ", first->name);
  return text;
}

std::string state_text(const Program& program) {
  std::vector<std::pair<std::string, std::string>> order;  // path with stars, the rest
  std::map<std::pair<std::string, std::string>, int> count;
  for (const StateTensor& t : program.state) {
    const std::pair<std::string, std::string> line = {with_stars(t.name), tensor_text(program, t)};
    if (count[line]++ == 0) order.push_back(line);
  }
  std::string text;
  for (const auto& line : order)
    text += concat("  ", line.first, "  ", line.second, count[line] > 1 ? concat("  × ", count[line]) : "", "\n");
  return text;
}

void count_ops(const Graph& graph, std::map<std::string, int>& count) {
  for (const Node& node : graph.nodes) {
    ++count[node.target];
    for (const NamedArgument& input : node.inputs)
      if (const auto* inner = std::get_if<std::shared_ptr<const Graph>>(&input.value); inner && *inner)
        count_ops(**inner, count);
  }
}

}  // namespace

namespace {

// An argument as text, values by the order in which they are made.
struct ArgumentText {
  template <class T>
  std::string operator()(const std::vector<T>& list) const {
    std::string text = "[";
    for (const auto& item : list) text += concat(item, ",");
    return text + "]";
  }
  std::string operator()(NoneArgument) const { return "none"; }
  std::string operator()(const ValueArgument& value) const { return concat("%", value.slot); }
  std::string operator()(const ValuesArgument& values) const { return "%" + (*this)(values.slots); }
  std::string operator()(const SymIntsArgument& list) const {
    std::string text = "(";
    for (const auto& item : list.items)
      text += std::holds_alternative<int64_t>(item) ? concat(std::get<int64_t>(item), ",")
                                                    : concat("%", std::get<ValueArgument>(item).slot, ",");
    return text + ")";
  }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const { return shortest(value) + "f"; }
  std::string operator()(const std::string& value) const { return json_quoted(value); }
  std::string operator()(const DTypeArgument& value) const { return std::string(ir::to_string(value.dtype)); }
  std::string operator()(MemoryFormat value) const { return concat("format", static_cast<int>(value)); }
  std::string operator()(StridedLayout) const { return "strided"; }
  std::string operator()(DeviceArgument) const { return "device"; }
  std::string operator()(const ComplexArgument& value) const {
    return concat(shortest(value.real), "+", shortest(value.imag), "i");
  }
  std::string operator()(const std::shared_ptr<const Graph>& graph) const {
    return graph ? concat("{", graph_text(*graph), "}") : "none";
  }

  static std::string graph_text(const Graph& graph) {
    std::string text;
    for (const Slot slot : graph.inputs) text += concat("%", slot, " ");
    for (const Node& node : graph.nodes) {
      text += concat("\n", node.target);
      for (const NamedArgument& input : node.inputs)
        text += concat(" ", input.name, "=", std::visit(ArgumentText(), input.value));
      text += " ->";
      for (const Argument& output : node.outputs) text += concat(" ", std::visit(ArgumentText(), output));
    }
    text += "\nreturn";
    for (const Argument& output : graph.outputs) text += concat(" ", std::visit(ArgumentText(), output));
    return text;
  }
};

}  // namespace

uint64_t graph_hash(const Program& program) {
  std::string text = ArgumentText::graph_text(program.graph);
  for (const auto& [slot, place] : program.state_inputs) text += concat("\n%", slot, " ", program.state[place].name);
  for (const InputTensor& input : program.inputs) text += concat("\n%", input.slot, " ", input.name);
  return xxh3(text);
}

std::string describe(const Program& program) {
  std::string text =
      concat(program.archive.path(), ": an archive of torch.export, written by torch ", program.torch_version, "\n");
  text += "Inputs\n";
  for (const InputTensor& input : program.inputs)
    text += concat("  ", input.name, "  ",
                   type_text(program, *program.graph.values[static_cast<size_t>(input.slot)].tensor), "\n");
  text += "Outputs\n";
  for (const OutputValue& output : program.outputs)
    if (output.kind == OutputValue::Kind::User) text += output_text(program, output);
  int64_t elements = 0;
  std::set<std::pair<size_t, int64_t>> seen;
  for (const StateTensor& t : program.state)
    if (t.kind == StateTensor::Kind::Parameter && seen.insert({t.entry, t.offset}).second)
      elements += ir::Type::tensor(t.dtype, t.sizes).numel();
  text += concat("Tensors, ", with_commas(elements), " parameters\n", state_text(program));
  std::map<std::string, int> count;
  count_ops(program.graph, count);
  int nodes = 0;
  std::vector<std::string> ops;
  for (const auto& [target, number] : count) {
    nodes += number;
    ops.push_back(concat(target.starts_with("torch.ops.") ? target.substr(10) : target, " × ", number));
  }
  return concat(text, "Ops, ", nodes, " nodes\n  ", join(ops, ", "), "\n");
}

}  // namespace sfsdp::exported
