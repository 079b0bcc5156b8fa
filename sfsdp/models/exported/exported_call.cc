// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/models/exported/exported_call.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/models/exported/exported_op.h"
#include "sfsdp/models/exported/region_call.h"
#include "sfsdp/models/exported/scalar_ops.h"
#include "sfsdp/models/exported/scalar_types.h"

namespace sfsdp::models {
namespace {

using exported::Argument;

c10::MemoryFormat memory_format_of(exported::MemoryFormat format) {
  switch (format) {
    case exported::MemoryFormat::Contiguous: return c10::MemoryFormat::Contiguous;
    case exported::MemoryFormat::ChannelsLast: return c10::MemoryFormat::ChannelsLast;
    case exported::MemoryFormat::ChannelsLast3d: return c10::MemoryFormat::ChannelsLast3d;
    case exported::MemoryFormat::Preserve: return c10::MemoryFormat::Preserve;
  }
  SFSDP_CHECK(false, "memory format ", static_cast<int>(format));
}

const c10::IValue& value_at(exported::Slot slot, const Values& values) {
  static const c10::IValue none;
  return slot == exported::kNone ? none : values.at(static_cast<size_t>(slot));
}

// As Python's bindings make a tensor of a number: it does not decide the dtype of a sum.
at::Tensor wrapped_number(const c10::IValue& number) {
  at::Tensor tensor = c10::scalar_to_tensor(number.toScalar());
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

bool is_number(const c10::IValue& value) {
  return value.isInt() || value.isDouble() || value.isBool() || value.isComplexDouble();
}

// An argument by its kind alone.
struct PlainValue {
  const Values& values;
  c10::IValue operator()(const exported::NoneArgument&) const { return {}; }
  c10::IValue operator()(const exported::ValueArgument& v) const { return value_at(v.slot, values); }
  c10::IValue operator()(const exported::ValuesArgument& v) const {
    c10::impl::GenericList list(c10::AnyType::get());
    for (const exported::Slot slot : v.slots) list.emplace_back(value_at(slot, values));
    return list;
  }
  c10::IValue operator()(const exported::SymIntsArgument& v) const {
    c10::impl::GenericList list(c10::AnyType::get());
    for (const auto& item : v.items) {
      const auto* number = std::get_if<int64_t>(&item);
      list.emplace_back(number ? c10::IValue(*number) : value_at(std::get<exported::ValueArgument>(item).slot, values));
    }
    return list;
  }
  c10::IValue operator()(bool v) const { return v; }
  c10::IValue operator()(int64_t v) const { return v; }
  c10::IValue operator()(double v) const { return v; }
  c10::IValue operator()(const std::string& v) const { return v; }
  template <class Item>
  c10::IValue operator()(const std::vector<Item>& v) const {
    c10::impl::GenericList list(c10::AnyType::get());
    for (const Item& item : v) list.emplace_back(c10::IValue(item));
    return list;
  }
  c10::IValue operator()(const std::vector<bool>& v) const {
    c10::impl::GenericList list(c10::AnyType::get());
    for (const bool item : v) list.emplace_back(c10::IValue(item));
    return list;
  }
  c10::IValue operator()(const exported::DTypeArgument& v) const {
    return static_cast<int64_t>(scalar_type_of(v.dtype));
  }
  c10::IValue operator()(exported::MemoryFormat v) const { return static_cast<int64_t>(memory_format_of(v)); }
  c10::IValue operator()(const exported::StridedLayout&) const { return static_cast<int64_t>(c10::Layout::Strided); }
  c10::IValue operator()(const exported::DeviceArgument&) const { return {}; }  // wherever the step runs
  c10::IValue operator()(const exported::ComplexArgument& v) const { return c10::complex<double>(v.real, v.imag); }
  c10::IValue operator()(const std::shared_ptr<const exported::Graph>&) const { return {}; }
};

// Turns a plain value into what the schema's type asks for, as Python's bindings do.
c10::IValue coerce(const c10::IValue& value, const c10::Type& type, std::optional<int32_t> copies) {
  switch (type.kind()) {
    case c10::TypeKind::OptionalType:
      return value.isNone() ? value : coerce(value, *type.castRaw<c10::OptionalType>()->getElementType(), copies);
    case c10::TypeKind::TensorType: return is_number(value) ? c10::IValue(wrapped_number(value)) : value;
    case c10::TypeKind::FloatType: return value.isInt() ? c10::IValue(static_cast<double>(value.toInt())) : value;
    case c10::TypeKind::ListType: break;
    default: return value;
  }
  const c10::TypePtr element = type.castRaw<c10::ListType>()->getElementType();
  std::vector<c10::IValue> items;
  if (value.isList())
    items.assign(value.toListRef().begin(), value.toListRef().end());
  else if (is_number(value) && copies)  // int[2] of a pool, given as one number
    items.assign(static_cast<size_t>(*copies), value);
  else
    return value;
  c10::impl::GenericList list(element->kind() == c10::TypeKind::SymIntType ? c10::IntType::get() : element);
  for (const c10::IValue& item : items) list.emplace_back(coerce(item, *element, std::nullopt));
  return list;
}

[[noreturn]] void refuse(const exported::Node& node, const std::string& what, const std::string& expected) {
  throw UserError(concat(describe(node), " ", what, "\n  expected ", expected));
}

// Whether a value is what the schema's type asks for. Kernels take that for granted: what unpacks their arguments looks at
// lists as a whole.
bool matches(const c10::IValue& value, const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::OptionalType:
      return value.isNone() || (value.isTensor() && !value.toTensor().defined()) ||
             matches(value, *type.castRaw<c10::OptionalType>()->getElementType());
    case c10::TypeKind::TensorType: return value.isTensor() && value.toTensor().defined();
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType: return value.isInt();
    case c10::TypeKind::FloatType: return value.isDouble();
    case c10::TypeKind::BoolType: return value.isBool();
    case c10::TypeKind::NumberType: return is_number(value);
    case c10::TypeKind::StringType: return value.isString();
    case c10::TypeKind::DeviceObjType: return value.isDevice();
    case c10::TypeKind::GeneratorType: return value.isNone();
    case c10::TypeKind::ListType: {
      const c10::Type& element = *type.castRaw<c10::ListType>()->getElementType();
      return value.isList() &&
             std::ranges::all_of(value.toListRef(), [&](const c10::IValue& item) { return matches(item, element); });
    }
    default: return false;
  }
}

// dtype, layout and memory format are numbers to a kernel, which takes one that stands for none as an index.
void check_enum(const exported::Node& node, const c10::Argument& argument, const Argument& given) {
  const c10::Type* type = argument.real_type().get();
  if (const auto* optional = type->castRaw<c10::OptionalType>()) type = optional->getElementType().get();
  const auto expect = [&](bool right, const char* expected) {
    if (!right && !std::holds_alternative<exported::NoneArgument>(given))
      refuse(node, concat("has an argument ", argument.name(), " of another kind"), expected);
  };
  if (type->kind() == c10::TypeKind::ScalarTypeType)
    expect(std::holds_alternative<exported::DTypeArgument>(given), "a dtype, as_scalar_type");
  if (type->kind() == c10::TypeKind::LayoutType)
    expect(std::holds_alternative<exported::StridedLayout>(given), "a layout, as_layout");
  if (type->kind() == c10::TypeKind::MemoryFormatType)
    expect(std::holds_alternative<exported::MemoryFormat>(given), "a memory format, as_memory_format");
}

// A graph that was exported in training mode says so in the arguments of its ops. A norm without running statistics takes
// those of the batch in evaluation too.
void turn_off_training(const c10::FunctionSchema& schema, torch::jit::Stack& stack) {
  const auto mean = schema.argumentIndexWithName("running_mean");
  const bool own_statistics = mean && stack[static_cast<size_t>(*mean)].isNone();
  for (size_t i = 0; i < stack.size(); ++i) {
    const std::string& name = schema.arguments()[i].name();
    const bool says = name == "train" || name == "training" || name == "use_input_stats";
    if (says && !own_statistics && stack[i].isBool()) stack[i] = false;
    if (name == "dropout_p" && stack[i].isDouble()) stack[i] = 0.0;
  }
}

c10::Device device_of_first_tensor(const torch::jit::Stack& stack) {
  for (const c10::IValue& value : stack)
    if (value.isTensor() && value.toTensor().defined()) return value.toTensor().device();
  return c10::kCPU;
}

// One op of LibTorch.
class OpCall : public ExportedCall {
 public:
  OpCall(const exported::Node& node, c10::OperatorHandle op) : node_(node), op_(std::move(op)) {
    std::set<std::string> given;
    for (const exported::NamedArgument& input : node.inputs)
      if (!given.insert(input.name).second)
        refuse(node, concat("has two arguments ", quote_safe(input.name)), "each once");
    for (const c10::Argument& argument : op_.schema().arguments()) {
      const auto found = std::ranges::find(node.inputs, argument.name(), &exported::NamedArgument::name);
      inputs_.push_back(found == node.inputs.end() ? nullptr : &found->value);
      if (!inputs_.back() && !argument.default_value() && argument.type()->kind() != c10::TypeKind::OptionalType)
        refuse(node, concat("lacks the argument ", argument.name()), concat("all of ", op_.schema()));
      if (inputs_.back()) check_enum(node, argument, *inputs_.back());
      given.erase(argument.name());
    }
    if (!given.empty())
      refuse(node, concat("has an argument ", quote_safe(*given.begin()), ", which this LibTorch's op has not"),
             concat(op_.schema(), "; build with the LibTorch that the model was exported with"));
  }

  Values run(const Values& values, bool training) const override {
    const auto& arguments = op_.schema().arguments();
    torch::jit::Stack stack;
    for (size_t i = 0; i < arguments.size(); ++i) {
      const c10::Argument& argument = arguments[i];
      c10::IValue value;
      if (argument.type()->kind() == c10::TypeKind::DeviceObjType)  // a move to a device must name one
        value = device_of_first_tensor(stack);
      else if (inputs_[i])
        value = coerce(plain_value(*inputs_[i], values), *argument.type(), argument.N());
      else if (argument.default_value())
        value = *argument.default_value();
      if (!matches(value, *argument.type()))
        refuse(node_, concat("is given ", value.tagKind(), " as ", argument.name()),
               concat(argument.type()->str(), ", as in ", op_.schema()));
      stack.push_back(std::move(value));
    }
    if (!training) turn_off_training(op_.schema(), stack);
    op_.callBoxed(stack);
    return stack;
  }

 private:
  const exported::Node& node_;
  c10::OperatorHandle op_;
  std::vector<const Argument*> inputs_;  // by place in the schema; nullptr: its default
};

class ScalarCall : public ExportedCall {
 public:
  explicit ScalarCall(const exported::Node& node) : node_(node) {}
  Values run(const Values& values, bool) const override {
    Values arguments;
    for (const exported::NamedArgument& input : node_.inputs) arguments.push_back(plain_value(input.value, values));
    return {scalar_op(node_.target, arguments)};
  }

 private:
  const exported::Node& node_;
};

// torch.export writes down what it took for granted of types; it holds as long as each op gives what the graph says.
class MetadataAssertion : public ExportedCall {
 public:
  explicit MetadataAssertion(const exported::Node& node) : node_(node) {}
  Values run(const Values& values, bool) const override {
    const auto tensor = input("a", values);
    const auto dtype = input("dtype", values);
    if (tensor.isTensor() && dtype.isInt() &&
        tensor.toTensor().scalar_type() != static_cast<c10::ScalarType>(dtype.toInt()))
      refuse(node_, concat("finds ", tensor.toTensor().scalar_type()),
             concat(static_cast<c10::ScalarType>(dtype.toInt()),
                    ", as the model was exported with; cast it in the model"
                    " and export it again"));
    return {};
  }

 private:
  c10::IValue input(const char* name, const Values& values) const {
    const auto found = std::ranges::find(node_.inputs, name, &exported::NamedArgument::name);
    return found == node_.inputs.end() ? c10::IValue() : plain_value(found->value, values);
  }
  const exported::Node& node_;
};

// Holds a condition on sizes of the batch; one on values of tensors is not looked at.
class ScalarAssertion : public ExportedCall {
 public:
  explicit ScalarAssertion(const exported::Node& node) : node_(node) {}
  Values run(const Values& values, bool) const override {
    if (node_.inputs.empty()) return {};
    const c10::IValue condition = plain_value(node_.inputs.front().value, values);
    if (is_number(condition) && !condition.isComplexDouble() && condition.toScalar().toDouble() == 0)
      refuse(node_, "fails", "a batch of sizes that the model was exported for");
    return {};
  }

 private:
  const exported::Node& node_;
};

// An op of another library that has a replacement here.
class ReplacedCall : public ExportedCall {
 public:
  ReplacedCall(const exported::Node& node, ExportedOp function) : node_(node), function_(std::move(function)) {}
  Values run(const Values& values, bool) const override {
    OpArguments arguments;
    for (const exported::NamedArgument& input : node_.inputs) arguments[input.name] = plain_value(input.value, values);
    try {
      return function_(arguments);
    } catch (const std::out_of_range&) {
      refuse(node_, "lacks an argument that its replacement reads", "all arguments of the op that was replaced");
    }
  }

 private:
  const exported::Node& node_;
  ExportedOp function_;
};

// Ops that read files, or memory by address or without looking at its bounds, that write to the terminal or set what is the
// process's, or that nothing of a forward pass calls. The archive comes from anywhere.
constexpr std::array kForbidden = {"aten::from_file",
                                   "aten::from_blob",
                                   "aten::set_data",
                                   "aten::_pin_memory",
                                   "aten::_reshape_alias",
                                   "aten::_resize_output",
                                   "aten::_resize_output_",
                                   "aten::_print",
                                   "aten::get_gradients",
                                   "aten::record_stream",
                                   "aten::_cufft_clear_plan_cache",
                                   "aten::_cufft_set_plan_cache_max_size",
                                   "aten::_linalg_check_errors",
                                   "aten::_ctc_loss_backward",
                                   "aten::segment_reduce",
                                   "aten::_segment_reduce_backward"};
// Each with a kernel that takes indices as they come, or that makes a tensor which is not strided.
constexpr std::array kForbiddenBegins = {"aten::_convert_indices_from_",
                                         "aten::_sparse_",
                                         "aten::sparse_",
                                         "aten::_to_sparse",
                                         "aten::to_sparse",
                                         "aten::_nested_",
                                         "aten::_validate_",
                                         "aten::_jagged_to_",
                                         "aten::_padded_dense_to_",
                                         "aten::_embedding_bag_"};

bool is_forbidden(const std::string& name) {
  const bool pools_back =
      name.find("max_pool") != std::string::npos && name.ends_with("_backward");  // by given indices
  return pools_back || std::ranges::find(kForbidden, name) != kForbidden.end() ||
         (name != "aten::_embedding_bag_forward_only" &&
          std::ranges::any_of(kForbiddenBegins, [&](const char* begin) { return name.starts_with(begin); }));
}

// Python's `x + 1` is add.Tensor of a number that stands as a tensor, C++'s is add.Scalar. LibTorch computes both alike; passes know
// the second.
bool has_scalar_overload(const exported::Node& node, const std::string& name, const std::string& overload) {
  constexpr std::array kNames = {"aten::add", "aten::sub", "aten::mul", "aten::div"};
  const auto other = std::ranges::find(node.inputs, "other", &exported::NamedArgument::name);
  return overload == "Tensor" && std::ranges::find(kNames, name) != kNames.end() && other != node.inputs.end() &&
         (std::holds_alternative<int64_t>(other->value) || std::holds_alternative<double>(other->value));
}

std::unique_ptr<const ExportedCall> make_aten_call(const exported::Node& node, const std::string& op) {
  const size_t dot = op.find('.');
  const std::string name = "aten::" + op.substr(0, dot);
  std::string overload = dot == std::string::npos ? "" : op.substr(dot + 1);
  if (overload == "default") overload = "";
  if (name == "aten::_assert_tensor_metadata") return std::make_unique<MetadataAssertion>(node);
  if (name == "aten::_assert_scalar" || name == "aten::_assert_async" || name.starts_with("aten::sym_constrain_range"))
    return std::make_unique<ScalarAssertion>(node);
  if (is_forbidden(name))
    refuse(node, "is not run", "ops that compute with tensors; compute it before the step and pass it in the batch");
  if (has_scalar_overload(node, name, overload)) overload = "Scalar";
  const auto handle = c10::Dispatcher::singleton().findSchema({name, overload});
  if (!handle)
    refuse(node, "is no op of this LibTorch", "the LibTorch that the model was exported with, or a newer one");
  return std::make_unique<OpCall>(node, *handle);
}

}  // namespace

std::string describe(const exported::Node& node) {
  return concat(quote_safe(node.target).substr(1, quote_safe(node.target).size() - 2),
                node.module_path.empty() ? "" : " at " + node.module_path,
                node.python.empty() ? "" : concat(" (", node.python, ")"));
}

c10::IValue plain_value(const Argument& argument, const Values& values) {
  return std::visit(PlainValue{values}, argument);
}

std::unique_ptr<const ExportedCall> make_call(const exported::Node& node) {
  constexpr std::string_view kAten = "torch.ops.aten.", kHigherOrder = "torch.ops.higher_order.";
  if (node.target.starts_with(kAten)) return make_aten_call(node, node.target.substr(kAten.size()));
  if (is_scalar_op(node.target)) return std::make_unique<ScalarCall>(node);
  if (node.target.starts_with(kHigherOrder)) {
    if (auto region = make_region(node)) return region;
    refuse(node, "is control flow that is not trained",
           "a forward without torch.cond, while_loop, scan and flex_attention; use torch.where, unrolled loops and"
           " scaled_dot_product_attention, and export again");
  }
  if (ExportedOp function = find_exported_op(node.target))
    return std::make_unique<ReplacedCall>(node, std::move(function));
  refuse(node, "is an op of another library than LibTorch",
         "aten ops alone, or a replacement by name: register_exported_op; a model of transformers takes"
         " attn_implementation sdpa or eager");
}

}  // namespace sfsdp::models
