// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exported/read_graph.h"

#include <algorithm>
#include <array>
#include <optional>

#include "sfsdp/base/check.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/exported/printable.h"
#include "sfsdp/exported/schema_numbers.h"
#include "sfsdp/exported/size_expression.h"

namespace sfsdp::exported {
namespace {

constexpr int kMaxDepth = 8;  // of graphs in graphs
constexpr size_t kMaxRank = 64;
constexpr size_t kMaxTextBytes = 200;   // of a Python line in messages
constexpr size_t kMaxPathBytes = 1000;  // of a module's path
constexpr const char* kCheckpointMark = "activation_checkpoint";

ir::DType read_dtype(const JsonCursor& at) {
  const int64_t number = at.integer();
  const auto* row = std::ranges::find(kDTypes, number, &DTypeRow::number);
  if (row == kDTypes.end()) at.refuse(concat("dtype ", number), "a number of torch/_export/serde/schema.py");
  if (!row->dtype)
    at.refuse(concat("dtype ", row->name),
              "float, bfloat16, half, double, complex64, bool or an integer of 8 to 64 bits");
  return *row->dtype;
}

// "Mul(Integer(2), Symbol('s0', positive=True, integer=True))" is 2*s0, as range_constraints call it.
std::string plain_expression(const std::string& text) {
  const std::optional<SizeExpression> expression = SizeExpression::parse(text);
  return expression ? expression->text() : text;
}

SymInt read_sym_int(const JsonCursor& at) {
  std::string kind;
  const JsonCursor value = at.variant(kind);
  if (kind == "as_int") return {value.integer(), ""};
  if (kind != "as_expr") at.refuse(quote_safe(kind), "as_int or as_expr");
  SymInt size = {-1, plain_expression(value.member("expr_str").name())};
  if (size.expr.empty()) value.refuse("no expression", "one, such as s0");
  if (const auto hint = value.optional("hint")) {
    std::string of;
    const JsonCursor number = hint->variant(of);
    if (of == "as_int") size.value = number.integer();
  }
  return size;
}

std::vector<SymInt> read_sym_ints(const JsonCursor& at) {
  if (at.size() > kMaxRank) at.refuse(concat(at.size(), " dimensions"), concat("at most ", kMaxRank));
  std::vector<SymInt> sizes;
  for (size_t i = 0; i < at.size(); ++i) sizes.push_back(read_sym_int(at.at(i)));
  return sizes;
}

Slot find_slot(const JsonCursor& at, const std::string& name, const ReadGraph& in) {
  const auto found = in.slots.find(name);
  if (found == in.slots.end())
    at.refuse(concat("reads ", quote_safe(name), ", which is not there yet"), "a value made before");
  return found->second;
}

Slot tensor_slot(const JsonCursor& at, const ReadGraph& in) {
  const JsonCursor name = at.member("name");
  return find_slot(name, name.text(), in);
}

Slot optional_slot(const JsonCursor& at, const ReadGraph& in) {
  std::string kind;
  const JsonCursor value = at.variant(kind);
  if (kind == "as_none") return kNone;
  if (kind != "as_tensor") at.refuse(quote_safe(kind), "as_tensor or as_none");
  return tensor_slot(value, in);
}

template <class Item, class Read>
std::vector<Item> read_list(const JsonCursor& at, Read read) {
  std::vector<Item> items;
  for (size_t i = 0; i < at.size(); ++i) items.push_back(read(at.at(i)));
  return items;
}

// A number that depends on the batch, by name, or one that does not.
Argument read_symbolic(const JsonCursor& at, const ReadGraph& in) {
  std::string kind;
  const JsonCursor value = at.variant(kind);
  if (kind == "as_name") return ValueArgument{find_slot(value, value.text(), in)};
  if (kind == "as_int") return value.integer();
  if (kind == "as_float") return value.number();
  if (kind == "as_bool") return value.boolean();
  at.refuse(quote_safe(kind), "as_name or a number");
}

Argument read_symbolic_ints(const JsonCursor& at, const ReadGraph& in) {
  SymIntsArgument list;
  for (size_t i = 0; i < at.size(); ++i) {
    const JsonCursor item = at.at(i);
    const Argument value = read_symbolic(item, in);
    if (const auto* number = std::get_if<int64_t>(&value))
      list.items.emplace_back(*number);
    else if (const auto* named = std::get_if<ValueArgument>(&value))
      list.items.emplace_back(*named);
    else
      item.refuse("no whole number", "as_int or as_name");
  }
  return list;
}

Argument read_memory_format(const JsonCursor& at) {
  const int64_t number = at.integer();
  if (number < 1 || number > static_cast<int64_t>(kMemoryFormats.size()))
    at.refuse(concat("memory format ", number), "1 to 4");
  return kMemoryFormats[static_cast<size_t>(number) - 1];
}

Argument read_layout(const JsonCursor& at) {
  if (at.integer() != kStrided)
    at.refuse(concat("layout ", at.integer()), "7, a dense tensor; sparse ones are not trained");
  return StridedLayout{};
}

// By Argument's kind in the schema: a list of plain values, or one.
std::optional<Argument> read_plain(const std::string& kind, const JsonCursor& value) {
  const auto integer = [](const JsonCursor& item) { return item.integer(); };
  const auto number = [](const JsonCursor& item) { return item.number(); };
  const auto boolean = [](const JsonCursor& item) { return item.boolean(); };
  const auto text = [](const JsonCursor& item) { return item.text(); };
  if (kind == "as_none") return NoneArgument{};
  if (kind == "as_int") return value.integer();
  if (kind == "as_ints") return read_list<int64_t>(value, integer);
  if (kind == "as_float") return value.number();
  if (kind == "as_floats") return read_list<double>(value, number);
  if (kind == "as_bool") return value.boolean();
  if (kind == "as_bools") return read_list<bool>(value, boolean);
  if (kind == "as_string" || kind == "as_operator") return value.text();
  if (kind == "as_strings") return read_list<std::string>(value, text);
  if (kind == "as_scalar_type") return DTypeArgument{read_dtype(value)};
  if (kind == "as_memory_format") return read_memory_format(value);
  if (kind == "as_layout") return read_layout(value);
  if (kind == "as_device") return DeviceArgument{};
  if (kind == "as_complex") return ComplexArgument{value.member("real").number(), value.member("imag").number()};
  return std::nullopt;
}

using Metas = std::unordered_map<std::string, TensorMeta>;

TensorMeta find_meta(const JsonCursor& at, const std::string& name, const Metas& metas) {
  const auto found = metas.find(name);
  if (found == metas.end()) at.refuse(concat("value ", quote_safe(name), " has no type"), "a row of tensor_values");
  return found->second;
}

Slot define(const JsonCursor& at, const std::string& name, std::optional<TensorMeta> tensor, ReadGraph& out) {
  const auto slot = static_cast<Slot>(out.graph.values.size());
  if (!out.slots.emplace(name, slot).second)
    at.refuse(concat("makes ", quote_safe(name), ", which is there already"), "a name of its own for each value");
  out.graph.values.push_back({name, std::move(tensor)});
  return slot;
}

// What an input of the graph or a result of a node makes.
Argument define_argument(const JsonCursor& at, const Metas& metas, ReadGraph& out) {
  std::string kind;
  const JsonCursor value = at.variant(kind);
  const auto tensor = [&](const JsonCursor& item) {
    const std::string& name = item.member("name").name();
    return define(item, name, find_meta(item, name, metas), out);
  };
  if (kind == "as_tensor") return ValueArgument{tensor(value)};
  if (kind == "as_tensors") return ValuesArgument{read_list<Slot>(value, tensor)};
  if (kind == "as_optional_tensor" || kind == "as_optional_tensors") {
    const auto one = [&](const JsonCursor& item) {
      std::string of;
      const JsonCursor inner = item.variant(of);
      return of == "as_none" ? kNone : tensor(inner);
    };
    if (kind == "as_optional_tensor") return ValueArgument{one(value)};
    return ValuesArgument{read_list<Slot>(value, one)};
  }
  if (kind == "as_sym_int" || kind == "as_sym_bool" || kind == "as_sym_float") {
    std::string of;
    const JsonCursor name = value.variant(of);
    if (of == "as_name") return ValueArgument{define(name, name.name(), std::nullopt, out)};
    return NoneArgument{};
  }
  if (const auto constant = read_plain(kind, value)) return NoneArgument{};  // a constant that nobody reads by name
  at.refuse(quote_safe(kind), "a tensor, a list of tensors or a number");
}

// What torch.fx.traceback.annotate left, a text of JSON; of which all but our mark is somebody else's.
bool is_checkpointed(const JsonCursor& custom) {
  if (custom.text().find(kCheckpointMark) == std::string::npos) return false;
  const JsonValue marks = parse_json(custom.text(), custom.where());
  const JsonValue* mark = marks.find(kCheckpointMark);
  return mark && mark->as<bool>() && *mark->as<bool>();
}

Node read_node(const JsonCursor& at, const Metas& metas, ReadGraph& out, int depth) {
  Node node;
  node.target = at.member("target").name();
  const JsonCursor metadata = at.member("metadata");
  if (const auto stack = metadata.optional("nn_module_stack")) node.module_path = module_path_of(stack->text());
  if (const auto trace = metadata.optional("stack_trace")) node.python = python_line_of(trace->text());
  if (const auto custom = metadata.optional("custom")) node.checkpointed = is_checkpointed(*custom);
  const JsonCursor inputs = at.member("inputs");
  for (size_t i = 0; i < inputs.size(); ++i) {
    const JsonCursor input = inputs.at(i);
    const JsonCursor name = input.member("name");
    node.inputs.push_back({name.text().empty() ? "" : name.name(), read_argument(input.member("arg"), out, depth)});
  }
  const JsonCursor outputs = at.member("outputs");
  for (size_t i = 0; i < outputs.size(); ++i) node.outputs.push_back(define_argument(outputs.at(i), metas, out));
  return node;
}

}  // namespace

TensorMeta read_tensor_meta(const JsonCursor& at) {
  TensorMeta meta;
  meta.dtype = read_dtype(at.member("dtype"));
  meta.sizes = read_sym_ints(at.member("sizes"));
  meta.strides = read_sym_ints(at.member("strides"));
  meta.offset = read_sym_int(at.member("storage_offset"));
  meta.requires_grad = at.member("requires_grad").boolean();
  read_layout(at.member("layout"));
  if (meta.sizes.size() != meta.strides.size())
    at.refuse(concat(meta.sizes.size(), " sizes, ", meta.strides.size(), " strides"), "as many");
  for (const std::vector<SymInt>* numbers : {&meta.sizes, &meta.strides})
    for (const SymInt& number : *numbers)
      if (number.expr.empty() && number.value < 0) at.refuse(concat("a size or stride of ", number.value), "0 or more");
  return meta;
}

Argument read_argument(const JsonCursor& at, const ReadGraph& in, int depth) {
  std::string kind;
  const JsonCursor value = at.variant(kind);
  if (auto plain = read_plain(kind, value)) return *std::move(plain);
  if (kind == "as_tensor") return ValueArgument{tensor_slot(value, in)};
  if (kind == "as_tensors")
    return ValuesArgument{read_list<Slot>(value, [&](const JsonCursor& item) { return tensor_slot(item, in); })};
  if (kind == "as_optional_tensor") return ValueArgument{optional_slot(value, in)};
  if (kind == "as_optional_tensors")
    return ValuesArgument{read_list<Slot>(value, [&](const JsonCursor& item) { return optional_slot(item, in); })};
  if (kind == "as_sym_int" || kind == "as_sym_bool" || kind == "as_sym_float") return read_symbolic(value, in);
  if (kind == "as_sym_ints") return read_symbolic_ints(value, in);
  if (kind == "as_graph") return std::make_shared<const Graph>(read_graph(value.member("graph"), depth + 1).graph);
  at.refuse(concat("an argument of kind ", quote_safe(kind)),
            "tensors, numbers, texts, dtypes or a graph; custom objects cannot be trained");
}

ReadGraph read_graph(const JsonCursor& at, int depth) {
  if (depth > kMaxDepth) at.refuse("graphs in graphs", concat("at most ", kMaxDepth, " of them"));
  ReadGraph out;
  Metas metas;
  at.member("tensor_values").for_members([&](const std::string& name, const JsonCursor& meta) {
    metas.emplace(name, read_tensor_meta(meta));
  });
  const JsonCursor inputs = at.member("inputs");
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Argument made = define_argument(inputs.at(i), metas, out);
    if (std::holds_alternative<ValuesArgument>(made)) inputs.at(i).refuse("a list", "one tensor or number");
    const auto* value = std::get_if<ValueArgument>(&made);
    out.graph.inputs.push_back(value ? value->slot : kNone);
  }
  const JsonCursor nodes = at.member("nodes");
  for (size_t i = 0; i < nodes.size(); ++i) out.graph.nodes.push_back(read_node(nodes.at(i), metas, out, depth));
  const JsonCursor outputs = at.member("outputs");
  for (size_t i = 0; i < outputs.size(); ++i) out.graph.outputs.push_back(read_argument(outputs.at(i), out, depth));
  return out;
}

std::string module_path_of(const std::string& stack) {
  const size_t last = stack.rfind(';');
  const std::vector<std::string> parts =
      split(std::string_view(stack).substr(last == std::string::npos ? 0 : last + 1), ',');
  if (parts.size() < 2) return "";
  return printable(std::string_view(parts[1]).substr(0, parts[1].find('@')), kMaxPathBytes);
}

std::string python_line_of(const std::string& stack_trace) {
  std::string found;
  const std::vector<std::string> lines = split(stack_trace, '\n');
  for (size_t i = 0; i + 1 < lines.size(); ++i) {
    const std::string_view line = trim(lines[i]);
    constexpr std::string_view kFile = "File \"", kLine = "\", line ";
    const size_t end = line.find(kLine);
    if (!line.starts_with(kFile) || end == std::string_view::npos) continue;
    const std::string_view path = line.substr(kFile.size(), end - kFile.size());
    if (path.find("torch/nn/") != std::string_view::npos && !found.empty()) continue;
    std::string_view number = line.substr(end + kLine.size());
    number = number.substr(0, number.find(','));
    const size_t slash = path.rfind('/');
    found =
        concat(slash == std::string_view::npos ? path : path.substr(slash + 1), ":", number, ": ", trim(lines[i + 1]));
  }
  return printable(found, kMaxTextBytes);
}

}  // namespace sfsdp::exported
