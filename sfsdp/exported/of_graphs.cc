// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exported/of_graphs.h"

#include <algorithm>
#include <cctype>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>
#include <variant>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/exported/same_graphs.h"
#include "sfsdp/exported/sym_numbers.h"
#include "sfsdp/ir/view_geometry.h"

namespace sfsdp::exported {
namespace {

using ir::Op;
using Kind = StateTensor::Kind;
using Parameter = OpSignature::Parameter;

// c10::MemoryFormat's numbers.
MemoryFormat memory_format_of(int64_t number) {
  constexpr MemoryFormat kFormats[] = {MemoryFormat::Contiguous, MemoryFormat::Preserve, MemoryFormat::ChannelsLast,
                                       MemoryFormat::ChannelsLast3d};
  SFSDP_CHECK(number >= 0 && static_cast<size_t>(number) < std::size(kFormats), "memory format ", number);
  return kFormats[number];
}

// "layers.0.wq" as a word of Python.
std::string word_of(const std::string& text) {
  std::string word;
  for (const char c : text) word += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return word.empty() || std::isdigit(static_cast<unsigned char>(word.front())) ? "_" + word : word;
}

bool is_view(const Op& op) { return op.is("aten.view", "aten._unsafe_view"); }
bool is_contiguous_copy(const Op& op) {
  const auto* format = op.find_attr<int64_t>("memory_format");
  return op.is("aten.clone") && format && memory_format_of(*format) == MemoryFormat::Contiguous;
}

// One use: builds the archive's graph from the captures, op by op.
class GraphMaker {
 public:
  GraphMaker(const CapturedForward& forward, const Sizes& sizes, const FindSignature& signature)
      : forward_(forward),
        sizes_(sizes),
        signature_(signature),
        first_(forward.graphs[0]),
        slots_(first_.id_bound(), kNone),
        numbers_(sizes, out_.graph, [this](const std::string& word) { return numbered(word); }) {}

  Contents make() {
    find_live();
    add_state();
    add_inputs();
    for (size_t i = 0; i < first_.ops().size(); ++i)
      if (live_.contains(first_.ops()[i].get())) add_op(i);
    add_outputs();
    for (size_t s = 0; s < sizes_.symbols().size(); ++s)
      out_.ranges.push_back({SymNumbers::symbol_name(s), sizes_.symbols()[s].min, sizes_.symbols()[s].max});
    return std::move(out_);
  }

 private:
  static bool is_given(const Op& op) { return op.is("param", "state", "constant", "input"); }
  const Op& op_at(size_t graph, size_t place) const { return *forward_.graphs[graph].ops()[place]; }

  // A view of a copy that was made for it alone is a reshape of what was copied.
  const ir::Value* viewed(const Op& op) const {
    const ir::Value* source = op.operands[0];
    const bool copied = op.is("aten._unsafe_view") && is_contiguous_copy(*source->producer());
    return copied ? source->producer()->operands[0] : source;
  }

  void find_live() {
    std::set<const ir::Value*> read(first_.outputs.begin(), first_.outputs.end());
    for (const ir::Carry& carry : first_.carries) read.insert(carry.next);
    for (size_t i = first_.ops().size(); i-- > 0;) {
      const std::unique_ptr<Op>& op = first_.ops()[i];
      const auto is_read = [&](const auto& result) { return read.contains(result.get()); };
      const bool state = op->is("param", "state", "input");
      if (!state && std::ranges::none_of(op->results(), is_read)) continue;
      live_.insert(op.get());
      if (is_view(*op))
        read.insert(viewed(*op));
      else
        read.insert(op->operands.begin(), op->operands.end());
    }
  }

  // Names that no other value has: a word with a number, and a word alone where it is free.
  std::string numbered(const std::string& word) {
    for (;;)
      if (std::string name = concat(word, "_", counts_[word]++); names_.insert(name).second) return name;
  }
  std::string named(const std::string& word) { return names_.insert(word).second ? word : numbered(word); }

  TensorMeta meta_of(size_t place, int result) const {
    const Op& op = op_at(0, place);
    const ir::Type& type = op.result(result)->type();
    TensorMeta meta;
    meta.dtype = type.dtype;
    std::vector<std::vector<int64_t>> shapes, strides;
    for (size_t g = 0; g < forward_.graphs.size(); ++g) {
      const ir::Type& there = op_at(g, place).result(result)->type();
      shapes.push_back(there.shape());
      strides.push_back(ir::strides_of(there));
    }
    const auto at = [&](const std::vector<std::vector<int64_t>>& lists, size_t d) {
      std::vector<int64_t> values;
      for (const auto& list : lists) values.push_back(list[d]);
      return values;
    };
    for (size_t d = 0; d < type.dims.size(); ++d) {
      meta.sizes.push_back(
          numbers_.expression(at(shapes, d), concat("dimension ", d, " of what ", ir::opcode_at(op), " gives")));
      meta.strides.push_back(
          numbers_.expression(at(strides, d), concat("stride ", d, " of what ", ir::opcode_at(op), " gives")));
    }
    return meta;
  }

  Slot define(const std::string& name, TensorMeta meta, const ir::Value* value) {
    const auto slot = static_cast<Slot>(out_.graph.values.size());
    out_.graph.values.push_back({name, std::move(meta)});
    if (value) slots_[value->id()] = slot;
    return slot;
  }

  void add_tensor(size_t place, const std::string& name, Kind kind, size_t entry, const ir::Value* value) {
    const Op& op = op_at(0, place);
    StateTensor t;
    t.name = name;
    t.kind = kind;
    TensorMeta meta = meta_of(place, 0);
    t.dtype = meta.dtype;
    t.sizes = op.result()->type().shape();
    t.requires_grad = meta.requires_grad = kind == Kind::Parameter && op.attr_or<bool>("trainable", true);
    t.entry = entry;
    for (const SymInt& size : meta.sizes)
      if (!size.expr.empty())
        throw UserError(
            concat("tensor ", name, " has another shape at other sizes\n  expected one that does not depend on them"));
    const char* prefix = kind == Kind::Parameter ? "p_" : kind == Kind::Buffer ? "b_" : "c_";
    const Slot slot = define(named(prefix + word_of(name)), std::move(meta), value);
    out_.graph.inputs.push_back(slot);
    out_.state_inputs.emplace_back(slot, out_.state.size());
    out_.state.push_back(std::move(t));
  }

  // Parameters, buffers, constants: the order in which torch.export has them.
  void add_state() {
    size_t entry = 0;
    for (const char* opcode : {"param", "state", "constant"})
      for (size_t i = 0; i < first_.ops().size(); ++i) {
        const Op& op = op_at(0, i);
        if (!op.is(opcode) || !live_.contains(&op)) continue;
        const bool constant = op.is("constant");
        const std::string name =
            constant ? concat("constant_", op.attr<int64_t>("index")) : op.attr<std::string>("name");
        const Kind kind = constant ? Kind::Constant : op.is("param") ? Kind::Parameter : Kind::Buffer;
        add_tensor(i, name, kind, entry, op.result());
        if (const auto tied = forward_.tied.find(name); !constant && tied != forward_.tied.end())
          for (const std::string& other : tied->second) add_tensor(i, other, kind, entry, nullptr);
        ++entry;
      }
  }

  void add_inputs() {
    size_t next = 0;
    for (size_t i = 0; i < first_.ops().size(); ++i) {
      if (!op_at(0, i).is("input")) continue;
      SFSDP_CHECK(next < forward_.inputs.size(), "more inputs than names");
      const std::string& name = forward_.inputs[next++];
      const Slot slot = define(named(word_of(name)), meta_of(i, 0), op_at(0, i).result());
      out_.graph.inputs.push_back(slot);
      out_.inputs.push_back({out_.graph.values[static_cast<size_t>(slot)].name, slot});
    }
  }

  // A whole number, which may depend on the sizes.
  Argument number(size_t place, const std::string& name) {
    std::vector<int64_t> values;
    for (size_t g = 0; g < forward_.graphs.size(); ++g) values.push_back(op_at(g, place).attr<int64_t>(name));
    const auto found = numbers_.argument(values, concat("argument ", name, " of ", ir::opcode_at(op_at(0, place))));
    return std::visit([](const auto& value) -> Argument { return value; }, found);
  }

  Argument numbers(size_t place, const std::string& name) {
    SymIntsArgument list;
    bool vary = false;
    const auto& first = op_at(0, place).attr<std::vector<int64_t>>(name);
    for (size_t d = 0; d < first.size(); ++d) {
      std::vector<int64_t> values;
      for (size_t g = 0; g < forward_.graphs.size(); ++g)
        values.push_back(op_at(g, place).attr<std::vector<int64_t>>(name)[d]);
      list.items.push_back(
          numbers_.argument(values, concat("argument ", name, "[", d, "] of ", ir::opcode_at(op_at(0, place)))));
      vary = vary || std::holds_alternative<ValueArgument>(list.items.back());
    }
    if (!vary) return first;
    return list;
  }

  Argument attribute(size_t place, const std::string& name, OpSignature::Kind kind) {
    const ir::Attr& attr = op_at(0, place).attrs.at(name);
    if (std::holds_alternative<int64_t>(attr)) {
      if (kind == OpSignature::Kind::MemoryFormat) return memory_format_of(std::get<int64_t>(attr));
      if (kind == OpSignature::Kind::Layout) return StridedLayout{};
      return number(place, name);
    }
    if (std::holds_alternative<std::vector<int64_t>>(attr)) return numbers(place, name);
    return std::visit(
        [](const auto& value) -> Argument {
          if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::monostate>)
            return NoneArgument{};
          else if constexpr (std::is_same_v<std::decay_t<decltype(value)>, ir::DType>)
            return DTypeArgument{value};
          else
            return value;
        },
        attr);
  }

  // A number that Python gives as itself stands for a tensor of one element.
  Argument operand(const ir::Value* value) {
    if (!value) return NoneArgument{};
    if (!value->producer()->is("scalar")) return ValueArgument{slots_[value->id()]};
    const auto place = place_of(value->producer());
    return attribute(place, "value", OpSignature::Kind::Other);
  }

  size_t place_of(const Op* op) {
    if (places_.empty())
      for (size_t i = 0; i < first_.ops().size(); ++i) places_.emplace(first_.ops()[i].get(), i);
    return places_.at(op);
  }

  // Once an argument is left out as it has its default, those after it are given by name.
  std::vector<NamedArgument> arguments_of(size_t place, const OpSignature& signature) {
    const Op& op = op_at(0, place);
    std::vector<NamedArgument> arguments;
    size_t next = 0, next_list = 0;
    bool gap = false;
    const auto add = [&](const Parameter& parameter, Argument value) {
      arguments.push_back({parameter.name, std::move(value), gap || parameter.by_name});
    };
    for (const Parameter& parameter : signature.parameters) {
      if (parameter.kind == OpSignature::Kind::Tensor) {
        add(parameter, operand(op.operands.at(next++)));
      } else if (parameter.kind == OpSignature::Kind::TensorList) {
        ValuesArgument list;
        for (const int count = op.operand_lists.at(next_list++).count; static_cast<int>(list.slots.size()) < count;) {
          const ir::Value* value = op.operands.at(next++);
          list.slots.push_back(value ? slots_[value->id()] : kNone);
        }
        add(parameter, std::move(list));
      } else if (op.has_attr(parameter.name)) {
        add(parameter, attribute(place, parameter.name, parameter.kind));
      } else if (parameter.kind == OpSignature::Kind::Device && op.operands.empty()) {
        add(parameter, DeviceArgument{});
      } else {
        gap = true;
      }
    }
    return arguments;
  }

  void add_op(size_t place) {
    const Op& op = op_at(0, place);
    if (is_given(op) || op.is("scalar")) return;
    const std::string opcode = op.opcode.str();
    if (!opcode.starts_with("aten."))
      throw UserError(concat(ir::opcode_at(op),
                             " cannot be in an archive\n  expected ops of LibTorch: a forward without ops of its own"));
    Node node;
    node.module_path = op.module_path;
    if (is_view(op)) {
      node.target = "torch.ops.aten.reshape.default";
      node.inputs = {{"self", operand(viewed(op))}, {"shape", numbers(place, "size")}};
      node.outputs = {ValueArgument{define(numbered("reshape"), meta_of(place, 0), op.result())}};
      out_.graph.nodes.push_back(std::move(node));
      return;
    }
    const std::string rest = opcode.substr(std::string_view("aten.").size());
    const size_t dot = rest.find('.');
    node.target = concat("torch.ops.", opcode, dot == std::string::npos ? ".default" : "");
    const OpSignature signature = signature_(opcode);
    node.inputs = arguments_of(place, signature);
    std::vector<Slot> results;
    const std::string word = word_of(rest.substr(0, dot));
    for (size_t r = 0; r < op.results().size(); ++r) {
      const ir::Value* result = op.result(static_cast<int>(r));
      const bool made = result->type().kind == ir::Type::Kind::Tensor;
      results.push_back(made ? define(numbered(word), meta_of(place, static_cast<int>(r)), result) : kNone);
    }
    if (signature.returns_list)
      node.outputs = {ValuesArgument{std::move(results)}};
    else
      for (const Slot slot : results) node.outputs.push_back(ValueArgument{slot});
    out_.graph.nodes.push_back(std::move(node));
  }

  // Buffers that forward writes stand first.
  void add_outputs() {
    for (const ir::Carry& carry : first_.carries)
      out_.outputs.push_back({OutputValue::Kind::BufferMutation, carry.current->producer()->attr<std::string>("name"),
                              ValueArgument{slots_[carry.next->id()]}});
    for (size_t i = 0; i < first_.outputs.size(); ++i)
      out_.outputs.push_back(
          {OutputValue::Kind::User, concat("output.", i), ValueArgument{slots_[first_.outputs[i]->id()]}});
    for (const OutputValue& output : out_.outputs) out_.graph.outputs.push_back(output.value);
  }

  const CapturedForward& forward_;
  const Sizes& sizes_;
  const FindSignature& signature_;
  const ir::Graph& first_;
  std::set<const Op*> live_;
  std::unordered_map<const Op*, size_t> places_;  // made when it is first asked for
  std::vector<Slot> slots_;                       // by the id of a value of the first graph
  std::set<std::string> names_;
  std::map<std::string, int> counts_;
  Contents out_;
  SymNumbers numbers_;
};

}  // namespace

Contents contents_of(const CapturedForward& forward, const Sizes& sizes, const FindSignature& signature) {
  check_same_ops(forward.graphs, sizes);
  return GraphMaker(forward, sizes, signature).make();
}

}  // namespace sfsdp::exported
