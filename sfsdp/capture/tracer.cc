// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/capture/tracer.h"

#include <ATen/SequenceNumber.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/function.h>
#include <torch/library.h>

#include <mutex>
#include <optional>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/capture/dispatch_key.h"
#include "sfsdp/capture/meta_kernels.h"
#include "sfsdp/capture/tensor_type.h"

namespace sfsdp::capture {
namespace {

// A backward pass may record from an engine thread, so the active tracer cannot be thread_local.
Tracer* active_tracer = nullptr;
std::mutex& tracer_mutex() {
  static std::mutex mutex;
  return mutex;
}

// "aten::add.Tensor" -> "aten.add.Tensor"
std::string opcode_of(const c10::OperatorName& name) {
  std::string text = name.name;
  if (size_t colons = text.find("::"); colons != std::string::npos) text.replace(colons, 2, ".");
  return name.overload_name.empty() ? text : text + "." + name.overload_name;
}

void trace_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (!active_tracer)
    throw UserError(
        concat(opcode_of(op.operator_name()), " on a parameter or buffer of a compiled module, which no longer",
               " holds values\n  expected calls of the step instead: step(batch) trains, step.eval(batch) gives"
               " the loss, step.gather(path) a whole tensor, step.state_dict() this rank's shards"));
  active_tracer->record(op, keys, stack);
}

// The fallback where the key is free; else the same function on every operator (2,372 of them took 2.5 ms).
void register_fallback() {
  auto& dispatcher = c10::Dispatcher::singleton();
  static std::vector<c10::RegistrationHandleRAII> registrations;
  if (!dispatcher.hasBackendFallbackForDispatchKey(kTraceKey)) {
    registrations.push_back(dispatcher.registerFallback(
        kTraceKey, c10::KernelFunction::makeFromBoxedFunction<&trace_fallback>(), "sfsdp trace"));
    return;
  }
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema() || op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) continue;
    registrations.push_back(dispatcher.registerImpl(name, kTraceKey,
                                                    c10::KernelFunction::makeFromBoxedFunction<&trace_fallback>(),
                                                    std::nullopt, nullptr, "sfsdp trace"));
  }
}

Geometry geometry_of(const at::Tensor& t) {
  return {t.sizes().vec(), t.strides().vec(), t.storage_offset(), t.scalar_type(), t.is_conj(), t.is_neg()};
}

bool writes(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// In-place ops whose functional twin is not simply the name without its underscore.
struct Twin {
  const char* name;
  const char* overload;
  const char* functional;
  const char* functional_overload;
};
constexpr Twin kTwins[] = {
    {"aten::bernoulli_", "float", "aten::bernoulli", "p"},
    {"aten::normal_", "", "aten::normal_functional", ""},
    {"aten::native_batch_norm", "", "aten::_native_batch_norm_legit_functional", ""},
    {"aten::_native_batch_norm_legit", "", "aten::_native_batch_norm_legit_functional", ""},
};

std::optional<c10::OperatorName> functional_twin(const c10::OperatorName& name) {
  for (const Twin& twin : kTwins)
    if (name.name == twin.name && name.overload_name == twin.overload)
      return c10::OperatorName(twin.functional, twin.functional_overload);
  if (name.name.ends_with('_') && !name.name.ends_with("__"))
    return c10::OperatorName(name.name.substr(0, name.name.size() - 1), name.overload_name);
  return std::nullopt;
}

void collect(const c10::IValue& value, std::vector<at::Tensor>& out) {
  if (value.isTensor()) {
    out.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& t : value.toTensorVector()) out.push_back(t);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) collect(element, out);
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) collect(element, out);
  } else {
    out.emplace_back();
  }
}

}  // namespace

// The arguments of one call, as they were before it ran.
struct Tracer::Call {
  std::vector<c10::IValue> arguments;
  std::vector<at::Tensor> tensors;  // all tensor arguments
  std::vector<at::Tensor> written;  // those the op updates in place
};

Tracer::Tracer() {
  tracer_mutex().lock();
  static const bool registered = (register_fallback(), register_meta_kernels(), true);
  (void)registered;
  active_tracer = this;
}

Tracer::~Tracer() {
  active_tracer = nullptr;
  tracer_mutex().unlock();
}

void Tracer::run(const std::function<void()>& body) {
  c10::impl::IncludeDispatchKeyGuard include(kTraceKey);
  recording_ = true;
  try {
    body();
  } catch (...) {
    recording_ = false;
    throw;
  }
  recording_ = false;
}

std::string Tracer::where(const c10::OperatorHandle& op) const {
  std::string text = opcode_of(op.operator_name());
  if (!module_path_.empty()) text += " at " + module_path_;
  return text;
}

void Tracer::declare(const at::Tensor& tensor, ir::Value* value) {
  SFSDP_CHECK(tensor.is_meta(), "declared tensor of %", value->name(), " is on ", tensor.device());
  StorageState& state = storages_[tensor.storage().unsafeGetStorageImpl()];
  state.base = value;
  state.base_geometry = geometry_of(tensor);
  state.views.clear();
  state.views[state.base_geometry] = value;
  alive_.push_back(tensor);
}

ir::Value* Tracer::constant(const at::Tensor& tensor) {
  if (tensor.dim() == 0 && tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    const bool is_int = c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false);
    ir::Op* op = graph.add("scalar", {}, {{"c", type_of(tensor)}});
    if (tensor.scalar_type() == c10::ScalarType::Bool)
      op->attrs["value"] = *tensor.const_data_ptr<bool>();
    else if (is_int)
      op->attrs["value"] = *tensor.const_data_ptr<int64_t>();
    else
      op->attrs["value"] = *tensor.const_data_ptr<double>();
    note_position(*op);
    return op->result();
  }
  ir::Op* op = graph.add("constant", {}, {{"const", type_of(tensor)}});
  op->attrs["index"] = static_cast<int64_t>(constants.size());
  constants.push_back(tensor);
  note_position(*op);
  return op->result();
}

ir::Value* Tracer::value_of(const at::Tensor& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  auto found = storages_.find(storage);
  if (found == storages_.end()) {
    if (tensor.is_meta())
      throw UserError(concat("a meta tensor of shape ", tensor.sizes(), " comes from outside of the captured step",
                             module_path_.empty() ? "" : " at ", module_path_,
                             "\n  expected a parameter, a registered buffer, a batch input or a tensor made in forward;"
                             " register it with register_buffer or pass it in the batch"));
    alive_.push_back(tensor);
    ir::Value* value = constant(tensor);
    StorageState& state = storages_[storage];
    state.base = value;
    state.base_geometry = geometry_of(tensor);
    state.views[state.base_geometry] = value;
    return value;
  }
  StorageState& state = found->second;
  Geometry geometry = geometry_of(tensor);
  if (auto view = state.views.find(geometry); view != state.views.end()) return view->second;
  SFSDP_CHECK(geometry.dtype == state.base_geometry.dtype && !geometry.conj && !geometry.neg,
              "cannot rebuild a view of another dtype of %", state.base->name());
  ir::Op* op = graph.add("aten.as_strided", {state.base}, {{state.base->name() + ".view", type_of(tensor)}});
  op->attrs["size"] = geometry.sizes;
  op->attrs["stride"] = geometry.strides;
  op->attrs["storage_offset"] = geometry.offset;
  note_position(*op);
  state.views[geometry] = op->result();
  return op->result();
}

void Tracer::redispatch(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) const {
  c10::impl::ExcludeDispatchKeyGuard exclude(kTraceKey);
  const auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kTraceKey);
  try {
    op.redispatchBoxed(below, stack);
  } catch (const c10::NotImplementedError&) {
    throw UserError(concat(where(op), " has no shape function, so it cannot be captured",
                           "\n  expected an op whose result shapes follow from its input shapes; write one in"
                           " sfsdp/capture/meta_kernels.cc, or compute it outside of the step"));
  }
}

void Tracer::record(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (!recording_) return redispatch(op, keys, stack);
  const auto& schema = op.schema();
  if (op.operator_name().name == "aten::_local_scalar_dense")
    throw UserError(concat("a tensor's value is read during capture (.item(), a condition or a size from data)",
                           module_path_.empty() ? "" : " at ", module_path_,
                           "\n  expected shapes and branches that do not depend on data; use torch::where, or pass"
                           " the value in the batch"));
  Call call;
  const size_t count = schema.arguments().size();
  auto arguments = torch::jit::last(*stack, count);
  bool has_tensor = false, tracked = false;
  for (size_t i = 0; i < count; ++i) {
    if (takes_tensor(schema.arguments()[i]) || takes_tensor_list(schema.arguments()[i])) {
      const size_t first = call.tensors.size();
      collect(arguments[i], call.tensors);
      if (writes(schema.arguments()[i]))
        for (size_t t = first; t < call.tensors.size(); ++t) call.written.push_back(call.tensors[t]);
    }
  }
  for (const at::Tensor& t : call.tensors) {
    if (!t.defined()) continue;
    has_tensor = true;
    tracked |= t.is_meta() || storages_.contains(t.storage().unsafeGetStorageImpl());
  }
  if (!has_tensor) {  // a factory: without a device it belongs to the step
    for (size_t i = 0; i < count; ++i) {
      c10::IValue& argument = (*stack)[stack->size() - count + i];
      if (schema.arguments()[i].name() == "device" && argument.isNone()) {
        argument = c10::Device(c10::DeviceType::Meta);
        tracked = true;
      } else if (argument.isDevice() && argument.toDevice().is_meta()) {
        tracked = true;
      }
    }
  }
  for (size_t i = 0; i < count; ++i) call.arguments.push_back((*stack)[stack->size() - count + i]);
  redispatch(op, keys, stack);
  if (tracked) bind_outputs(op, call, *stack);  // else: real tensors only, folded at capture
}

void Tracer::bind_outputs(const c10::OperatorHandle& op, Call& call, const torch::jit::Stack& stack) {
  const auto& schema = op.schema();
  std::vector<at::Tensor> outputs;
  const size_t returns = schema.returns().size();
  for (size_t i = 0; i < returns; ++i) collect(stack[stack.size() - returns + i], outputs);

  // Views that change nothing (detach, view to the same shape) are the value they look at.
  bool all_known = !outputs.empty() && call.written.empty();
  for (const at::Tensor& t : outputs) {
    if (!t.defined()) {
      all_known = false;
      break;
    }
    auto found = storages_.find(t.storage().unsafeGetStorageImpl());
    if (found == storages_.end() || !found->second.views.contains(geometry_of(t))) all_known = false;
  }
  if (all_known) return;

  c10::OperatorName name = op.operator_name();
  const bool mutates_hidden = name.name == "aten::native_batch_norm" && call.tensors.size() >= 5 &&
                              call.tensors[3].defined() && call.arguments[5].toBool();
  if (mutates_hidden) call.written = {call.tensors[3], call.tensors[4]};
  std::optional<c10::OperatorHandle> target = op;
  if (!call.written.empty()) {
    auto twin = functional_twin(name);
    target = twin ? c10::Dispatcher::singleton().findSchema(*twin) : std::nullopt;
    if (!target)
      throw UserError(concat(where(op), " writes into its argument and has no functional form",
                             "\n  expected an op such as add_ or copy_; use the op that returns a new tensor"));
    name = *twin;
  }

  std::vector<ir::Value*> operands;
  std::vector<ir::Op::OperandList> lists;
  std::map<std::string, ir::Attr> attrs;
  const auto operand = [&](const c10::IValue& value) {
    const bool present = value.isTensor() && value.toTensor().defined();
    operands.push_back(present ? value_of(value.toTensor()) : nullptr);
  };
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    const c10::Argument& argument = target->schema().arguments()[i];
    const c10::IValue& value = call.arguments[i];
    if (takes_tensor(argument)) {
      operand(value);
    } else if (takes_tensor_list(argument)) {
      const int first = static_cast<int>(operands.size());
      if (!value.isNone())
        for (const c10::IValue& element : value.toListRef()) operand(element);
      lists.push_back({first, static_cast<int>(operands.size()) - first});
    } else if (value.isDevice() || value.isGenerator()) {
      continue;  // the executor's own
    } else if (argument.default_value() && *argument.default_value() == value) {
      continue;
    } else if (!value.isNone()) {
      attrs[argument.name()] = attr_of(value, argument, where(op));
    }
  }
  std::vector<ir::Graph::NewResult> results;
  const size_t own_results = mutates_hidden ? 3 : outputs.size();
  for (size_t i = 0; i < own_results && i < outputs.size(); ++i) results.push_back({"", type_of(outputs[i])});
  if (mutates_hidden || name.name == "aten::_native_batch_norm_legit_functional")
    for (const at::Tensor& t : call.written) results.push_back({"", type_of(t)});
  ir::Op* recorded = graph.add(opcode_of(name), std::move(operands), std::move(results));
  recorded->operand_lists = std::move(lists);
  recorded->attrs = std::move(attrs);
  note_position(*recorded);

  if (call.written.empty()) {
    bind_results(recorded, outputs);
  } else if (recorded->results().size() > call.written.size()) {  // batch norm: outputs, then the running statistics
    bind_results(recorded, outputs);
    for (size_t i = 0; i < call.written.size(); ++i)
      write(call.written[i], recorded->result(static_cast<int>(outputs.size() + i)));
  } else {
    SFSDP_CHECK(recorded->results().size() == call.written.size(), where(op), " updates ", call.written.size());
    for (size_t i = 0; i < call.written.size(); ++i) write(call.written[i], recorded->result(static_cast<int>(i)));
  }
}

void Tracer::bind_results(ir::Op* op, const std::vector<at::Tensor>& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& t = tensors[i];
    if (!t.defined()) continue;
    StorageState& state = storages_[t.storage().unsafeGetStorageImpl()];
    ir::Value* value = op->result(static_cast<int>(i));
    if (!state.base) {
      state.base = value;
      state.base_geometry = geometry_of(t);
      alive_.push_back(t);
    }
    state.views[geometry_of(t)] = value;
  }
}

void Tracer::write(const at::Tensor& target, ir::Value* value) {
  StorageState& state = storages_.at(target.storage().unsafeGetStorageImpl());
  Geometry geometry = geometry_of(target);
  if (geometry != state.base_geometry) {  // part of a storage: write it into the whole
    ir::Op* op =
        graph.add("aten.as_strided_scatter", {state.base, value}, {{state.base->name() + ".set", state.base->type()}});
    op->attrs["size"] = geometry.sizes;
    op->attrs["stride"] = geometry.strides;
    op->attrs["storage_offset"] = geometry.offset;
    note_position(*op);
    state.base = op->result();
  } else {
    state.base = value;
  }
  state.views.clear();  // other views are rebuilt from the new base when they are next read
  state.views[state.base_geometry] = state.base;
  state.views[geometry] = value;
}

void Tracer::note_position(ir::Op& op) {
  op.section = section;
  if (section == ir::Section::Bwd) {
    if (auto node = torch::autograd::get_current_node()) {
      auto owner = forward_ops_.find(static_cast<int64_t>(node->sequence_nr()));
      if (owner != forward_ops_.end()) {
        op.bwd_of = owner->second;
        op.module_path = owner->second->module_path;
      }
    }
    return;
  }
  // The C++ frontend has no forward hooks: an op stands where the last parameter that was read lives.
  for (const ir::Value* operand : op.operands)
    if (operand && operand->producer()->is("param")) {
      module_path_ = operand->producer()->module_path;
      break;
    }
  op.module_path = module_path_;
  // Autograd numbers a node just before it calls down to this key.
  const int64_t sequence = static_cast<int64_t>(at::sequence_number::peek()) - 1;
  forward_ops_.emplace(sequence, &op);
}

}  // namespace sfsdp::capture
