// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exported/write_program.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/exported/sample_inputs.h"
#include "sfsdp/exported/schema_numbers.h"
#include "sfsdp/ir/view_geometry.h"

namespace sfsdp::exported {
namespace {

using Json = nlohmann::ordered_json;
using Kind = StateTensor::Kind;

constexpr int64_t kBlock = 1 << 20;                                     // elements that are read at once
constexpr int kPositional = 1, kByName = 2;                             // of its ArgumentKind
constexpr int kSchemaMajor = 8, kSchemaMinor = 20;                      // of torch 2.13; loaders ask for the major one
constexpr int kOpset = 10;                                              // of aten, as torch 2.11 to 2.15 have it
constexpr const char* kModuleClass = "torch.nn.modules.module.Module";  // what a C++ class is said to be

int64_t number_in(ir::DType dtype) {
  const auto* row = std::ranges::find(kDTypes, std::optional(dtype), &DTypeRow::dtype);
  SFSDP_CHECK(row != kDTypes.end(), "dtype ", static_cast<int>(dtype));
  return row->number;
}

int64_t number_in(MemoryFormat format) {
  return std::ranges::find(kMemoryFormats, format) - kMemoryFormats.begin() + 1;
}

Json json_of(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

Json json_of(const SymInt& number) {
  if (number.expr.empty()) return {{"as_int", number.value}};
  return {{"as_expr", {{"expr_str", number.expr}, {"hint", {{"as_int", number.value}}}}}};
}

Json json_of(const std::vector<SymInt>& numbers) {
  Json list = Json::array();
  for (const SymInt& number : numbers) list.push_back(json_of(number));
  return list;
}

Json cpu() { return {{"type", "cpu"}, {"index", nullptr}}; }

Json json_of(const TensorMeta& meta) {
  return {{"dtype", number_in(meta.dtype)},
          {"sizes", json_of(meta.sizes)},
          {"requires_grad", meta.requires_grad},
          {"device", cpu()},
          {"strides", json_of(meta.strides)},
          {"storage_offset", json_of(meta.offset)},
          {"layout", kStrided}};
}

std::vector<SymInt> plain(const std::vector<int64_t>& numbers) {
  std::vector<SymInt> out;
  for (const int64_t number : numbers) out.push_back({number, ""});
  return out;
}

// A tensor of the state, as it lies in the file.
TensorMeta meta_object(const StateTensor& t) {
  return {t.dtype, plain(t.sizes), plain(ir::strides_of(ir::Type::tensor(t.dtype, t.sizes))), {}, t.requires_grad};
}

// Arguments by the names of their values.
class ArgumentWriter {
 public:
  explicit ArgumentWriter(const Graph& graph) : graph_(graph) {}

  Json operator()(const Argument& argument) const {
    return std::visit([&](const auto& value) { return write(value); }, argument);
  }

 private:
  const Value& value_at(Slot slot) const { return graph_.values.at(static_cast<size_t>(slot)); }
  Json tensor(Slot slot) const { return {{"name", value_at(slot).name}}; }

  Json write(const NoneArgument&) const { return {{"as_none", true}}; }
  Json write(const ValueArgument& value) const {
    if (value.slot == kNone) return write(NoneArgument{});
    if (value_at(value.slot).tensor) return {{"as_tensor", tensor(value.slot)}};
    return {{"as_sym_int", {{"as_name", value_at(value.slot).name}}}};
  }
  Json write(const ValuesArgument& values) const {
    const bool optional = std::ranges::find(values.slots, kNone) != values.slots.end();
    Json list = Json::array();
    for (const Slot slot : values.slots)
      if (optional)
        list.push_back(write(ValueArgument{slot}));
      else
        list.push_back(tensor(slot));
    return {{optional ? "as_optional_tensors" : "as_tensors", std::move(list)}};
  }
  Json write(const SymIntsArgument& numbers) const {
    Json list = Json::array();
    for (const auto& item : numbers.items)
      if (const auto* named = std::get_if<ValueArgument>(&item))
        list.push_back({{"as_name", value_at(named->slot).name}});
      else
        list.push_back({{"as_int", std::get<int64_t>(item)}});
    return {{"as_sym_ints", std::move(list)}};
  }
  Json write(bool value) const { return {{"as_bool", value}}; }
  Json write(int64_t value) const { return {{"as_int", value}}; }
  Json write(double value) const { return {{"as_float", json_of(value)}}; }
  Json write(const std::string& value) const { return {{"as_string", value}}; }
  Json write(const std::vector<bool>& values) const { return {{"as_bools", values}}; }
  Json write(const std::vector<int64_t>& values) const { return {{"as_ints", values}}; }
  Json write(const std::vector<double>& values) const {
    Json list = Json::array();
    for (const double value : values) list.push_back(json_of(value));
    return {{"as_floats", std::move(list)}};
  }
  Json write(const std::vector<std::string>& values) const { return {{"as_strings", values}}; }
  Json write(const DTypeArgument& value) const { return {{"as_scalar_type", number_in(value.dtype)}}; }
  Json write(MemoryFormat format) const { return {{"as_memory_format", number_in(format)}}; }
  Json write(const StridedLayout&) const { return {{"as_layout", kStrided}}; }
  Json write(const DeviceArgument&) const { return {{"as_device", cpu()}}; }
  Json write(const ComplexArgument& value) const {
    return {{"as_complex", {{"real", value.real}, {"imag", value.imag}}}};
  }
  Json write(const std::shared_ptr<const Graph>&) const {
    SFSDP_CHECK(false, "a graph in a graph is not written");
    return {};
  }

  const Graph& graph_;
};

// "layers", "layers.0", "layers.0.attention"; none of "".
std::vector<std::string> modules_around(const std::string& path) {
  std::vector<std::string> modules;
  for (size_t end = path.find('.'); !path.empty(); end = path.find('.', end + 1)) {
    modules.push_back(path.substr(0, end));
    if (end == std::string::npos) break;
  }
  return modules;
}

// "layers.0.attention" as torch.export tells it: each module around the op, outer ones first.
std::string module_stack(const std::string& path) {
  std::string stack = concat("L__self__,,", kModuleClass);
  for (const std::string& module : modules_around(path)) {
    std::string key = module;
    std::ranges::replace(key, '.', '_');
    stack += concat(";L__self___", key, ",", module, ",", kModuleClass);
  }
  return stack;
}

Json json_of(const Node& node, const ArgumentWriter& argument, const std::string& name) {
  Json inputs = Json::array(), outputs = Json::array();
  for (const NamedArgument& input : node.inputs)
    inputs.push_back(
        {{"name", input.name}, {"arg", argument(input.value)}, {"kind", input.by_name ? kByName : kPositional}});
  for (const Argument& output : node.outputs) outputs.push_back(argument(output));
  return {{"target", node.target},
          {"inputs", std::move(inputs)},
          {"outputs", std::move(outputs)},
          {"metadata", {{"nn_module_stack", module_stack(node.module_path)}}},
          {"is_hop_single_tensor_return", nullptr},
          {"name", name}};
}

// The name of a node is that of its one value; one that makes several gets a name of its own.
std::string node_name(const Node& node, const Graph& graph, size_t place) {
  const auto* one = node.outputs.size() == 1 ? std::get_if<ValueArgument>(&node.outputs.front()) : nullptr;
  return one && one->slot != kNone ? graph.values.at(static_cast<size_t>(one->slot)).name : concat("node_", place);
}

Json json_of(const Graph& graph) {
  const ArgumentWriter argument(graph);
  Json inputs = Json::array(), outputs = Json::array(), nodes = Json::array();
  Json tensors = Json::object(), numbers = Json::object();
  for (const Slot slot : graph.inputs) inputs.push_back(argument(ValueArgument{slot}));
  for (const Argument& output : graph.outputs) outputs.push_back(argument(output));
  for (size_t i = 0; i < graph.nodes.size(); ++i)
    nodes.push_back(json_of(graph.nodes[i], argument, node_name(graph.nodes[i], graph, i)));
  for (const Value& value : graph.values)
    if (value.tensor)
      tensors[value.name] = json_of(*value.tensor);
    else
      numbers[value.name] = json_of(value.number);
  return {{"inputs", std::move(inputs)},
          {"outputs", std::move(outputs)},
          {"nodes", std::move(nodes)},
          {"tensor_values", std::move(tensors)},
          {"sym_int_values", std::move(numbers)},
          {"sym_bool_values", Json::object()},
          {"is_single_tensor_return", false},
          {"custom_obj_values", Json::object()},
          {"sym_float_values", Json::object()}};
}

const std::string& name_at(const Contents& contents, Slot slot) {
  return contents.graph.values.at(static_cast<size_t>(slot)).name;
}

Json input_specs(const Contents& contents) {
  std::map<Slot, size_t> state(contents.state_inputs.begin(), contents.state_inputs.end());
  Json specs = Json::array();
  for (const Slot slot : contents.graph.inputs) {
    const Json named = {{"name", name_at(contents, slot)}};
    const auto found = state.find(slot);
    if (found == state.end()) {
      specs.push_back({{"user_input", {{"arg", {{"as_tensor", named}}}}}});
      continue;
    }
    const StateTensor& t = contents.state.at(found->second);
    if (t.kind == Kind::Parameter)
      specs.push_back({{"parameter", {{"arg", named}, {"parameter_name", t.name}}}});
    else if (t.kind == Kind::Buffer)
      specs.push_back({{"buffer", {{"arg", named}, {"buffer_name", t.name}, {"persistent", t.persistent}}}});
    else
      specs.push_back({{"tensor_constant", {{"arg", named}, {"tensor_constant_name", t.name}}}});
  }
  return specs;
}

Json output_specs(const Contents& contents) {
  const ArgumentWriter argument(contents.graph);
  Json specs = Json::array();
  for (const OutputValue& output : contents.outputs) {
    if (output.kind == OutputValue::Kind::User) {
      specs.push_back({{"user_output", {{"arg", argument(output.value)}}}});
      continue;
    }
    SFSDP_CHECK(output.kind == OutputValue::Kind::BufferMutation, output.name);
    const Json named = {{"name", name_at(contents, std::get<ValueArgument>(output.value).slot)}};
    specs.push_back({{"buffer_mutation", {{"arg", named}, {"buffer_name", output.name}}}});
  }
  return specs;
}

Json leaf() { return {{"type", nullptr}, {"context", nullptr}, {"children_spec", Json::array()}}; }
Json tuple_of(size_t leaves) {
  return {{"type", "builtins.tuple"}, {"context", "null"}, {"children_spec", Json(leaves, leaf())}};
}

// How Python calls it: forward(*inputs), which returns a tensor, or a tuple of several.
Json call_signature(const Contents& contents) {
  const auto results =
      static_cast<size_t>(std::ranges::count(contents.outputs, OutputValue::Kind::User, &OutputValue::kind));
  const Json no_names = {{"type", "builtins.dict"}, {"context", "[]"}, {"children_spec", Json::array()}};
  Json arguments = tuple_of(2);
  arguments["children_spec"] = Json::array({tuple_of(contents.inputs.size()), no_names});
  Json names = Json::array();
  for (const InputTensor& input : contents.inputs) names.push_back(input.name);
  return {{"inputs", Json::array()},
          {"outputs", Json::array()},
          {"in_spec", Json::array({1, arguments}).dump()},
          {"out_spec", Json::array({1, results == 1 ? leaf() : tuple_of(results)}).dump()},
          {"forward_arg_names", std::move(names)}};
}

// The module itself, then each that an op or a tensor of it is in.
Json module_calls(const Contents& contents) {
  Json calls = Json::array({{{"fqn", ""}, {"signature", call_signature(contents)}}});
  std::set<std::string> seen = {""};
  const auto add = [&](const std::string& path) {
    for (const std::string& module : modules_around(path))
      if (seen.insert(module).second) calls.push_back({{"fqn", module}, {"signature", nullptr}});
  };
  for (const StateTensor& t : contents.state)
    if (const size_t dot = t.name.rfind('.'); dot != std::string::npos) add(t.name.substr(0, dot));
  for (const Node& node : contents.graph.nodes) add(node.module_path);
  return calls;
}

std::string model_text(const Contents& contents, const std::string& torch_version) {
  Json ranges = Json::object();
  for (const Contents::Range& range : contents.ranges)
    ranges[range.symbol] = {{"min_val", range.min ? Json(*range.min) : Json()},
                            {"max_val", range.max ? Json(*range.max) : Json()}};
  Json module = {{"graph", json_of(contents.graph)},
                 {"signature", {{"input_specs", input_specs(contents)}, {"output_specs", output_specs(contents)}}},
                 {"module_call_graph", module_calls(contents)},
                 {"metadata", Json::object()},
                 {"treespec_namedtuple_fields", Json::object()}};
  const Json model = {{"graph_module", std::move(module)},
                      {"opset_version", {{"aten", kOpset}}},
                      {"range_constraints", std::move(ranges)},
                      {"schema_version", {{"major", kSchemaMajor}, {"minor", kSchemaMinor}}},
                      {"verifiers", Json::array({"TRAINING"})},
                      {"torch_version", torch_version},
                      {"guards_code", Json::array()}};
  return model.dump();
}

// Tensors of one of the two folders: data/weights/weight_N, data/constants/tensor_N.
void write_tensors(ZipWriter& zip, const Contents& contents, bool weights, const ReadElements& values) {
  const std::string folder = weights ? "model/data/weights/" : "model/data/constants/";
  std::map<size_t, std::string> files;  // by entry
  Json config = Json::object();
  for (const StateTensor& t : contents.state) {
    if ((t.kind != Kind::Constant && t.persistent) != weights) continue;
    const auto [place, fresh] = files.try_emplace(t.entry, concat(weights ? "weight_" : "tensor_", files.size()));
    config[t.name] = {{"path_name", place->second},
                      {"is_param", t.kind == Kind::Parameter},
                      {"use_pickle", false},
                      {"tensor_meta", json_of(meta_object(t))}};
    if (!fresh) continue;
    const ir::Type type = ir::Type::tensor(t.dtype, t.sizes);
    zip.begin(folder + place->second, static_cast<uint64_t>(type.bytes()));
    for (int64_t begin = 0; begin < type.numel(); begin += kBlock)
      zip.append(values(t, begin, std::min(type.numel(), begin + kBlock)));
  }
  zip.add(concat(folder, weights ? "model_weights_config.json" : "model_constants_config.json"),
          Json({{"config", std::move(config)}}).dump());
}

std::string examples_text(const Contents& contents) {
  std::vector<SampleInput> samples;
  for (const InputTensor& input : contents.inputs) {
    const TensorMeta& meta = contents.graph.values.at(static_cast<size_t>(input.slot)).tensor.value();
    SampleInput sample = {meta.dtype, {}};
    for (const SymInt& size : meta.sizes) sample.sizes.push_back(size.value);
    samples.push_back(std::move(sample));
  }
  return sample_inputs_file(samples);
}

}  // namespace

void write_program(const Contents& contents, const std::string& torch_version, const ReadElements& values,
                   const WriteBytes& write) {
  ZipWriter zip(write);
  zip.add("model/archive_format", "pt2");
  zip.add("model/archive_version", "0");
  zip.add("model/byteorder", "little");
  zip.add("model/.data/version", "6\n");
  zip.add("model/models/model.json", model_text(contents, torch_version));
  zip.add("model/data/sample_inputs/model.pt", examples_text(contents));
  write_tensors(zip, contents, /*weights=*/true, values);
  write_tensors(zip, contents, /*weights=*/false, values);
  zip.finish();
}

}  // namespace sfsdp::exported
