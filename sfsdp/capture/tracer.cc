// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/capture/tracer.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/function.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string_view>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/module_scope.h"
#include "sfsdp/capture/check_product.h"
#include "sfsdp/capture/dispatch_key.h"
#include "sfsdp/capture/functional_twin.h"
#include "sfsdp/capture/meta_kernels.h"
#include "sfsdp/capture/meta_rules.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/ir/canonical/term.h"

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
  // What an op is made of was cast before it came here: autocast is above.
  const c10::impl::ExcludeDispatchKeyGuard uncast(c10::autocast_dispatch_keyset);
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
  Geometry geometry;
  geometry.sizes.append(t.sizes().begin(), t.sizes().end());
  geometry.strides.append(t.strides().begin(), t.strides().end());
  geometry.offset = t.storage_offset();
  geometry.dtype = t.scalar_type();
  geometry.conj = t.is_conj();
  geometry.neg = t.is_neg();
  return geometry;
}

void set_strided(ir::Op& op, const at::Tensor& like) {
  op.attrs["size"] = like.sizes().vec();
  op.attrs["stride"] = like.strides().vec();
  op.attrs["storage_offset"] = like.storage_offset();
}

// The stride of a dimension of size 1 addresses nothing.
bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  for (int64_t d = 0; d < a.dim(); ++d)
    if (a.size(d) > 1 && a.stride(d) != b.stride(d)) return false;
  return true;
}

bool writes(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// LibTorch's words for a null data pointer, which only a tensor without memory has.
bool touches_memory(const c10::Error& error) {
  return std::string_view(error.what_without_backtrace()).find("its data is not allocated yet") != std::string::npos;
}

[[noreturn]] void refuse_memory(const std::string& where) {
  throw UserError(
      concat("the memory of a tensor is read or written by the host during capture (data_ptr, accessor,"
             " at::tensor({…}))",
             where, "\n  expected ops only; make constants with torch::tensor({…}), or pass them in the batch"));
}

}  // namespace

// What the recorder asks of an op's schema, asked once: reading its types for every call took a fifth of a trace.
struct Tracer::Signature {
  enum class Kind : uint8_t { Tensor, TensorList, Other };
  struct Parameter {
    Kind kind = Kind::Other;
    bool written = false;
    bool device = false;
  };
  std::string opcode;
  std::vector<Parameter> parameters;
};

// The arguments of one call, as they were before it ran.
struct Tracer::Call {
  std::vector<c10::IValue> arguments;
  std::vector<at::Tensor> tensors;  // all tensor arguments
  std::vector<at::Tensor> written;  // those the op updates in place
  ir::Value* reshaped = nullptr;    // of unsqueeze_, t_, …: what the first argument was before it changed shape
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
  } catch (const c10::Error& error) {
    recording_ = false;
    if (touches_memory(error)) refuse_memory(at_module());
    throw UserError(concat("the step cannot be captured", at_module(), ": ", error.what_without_backtrace(),
                           "\n  expected a forward and a loss that run on real tensors; the same call without"
                           " sfsdp shows more"));
  } catch (const std::exception&) {
    recording_ = false;
    throw;
  } catch (...) {
    recording_ = false;
    throw UserError(concat("the model or its loss threw", at_module(), " what is no std::exception",
                           "\n  expected an exception such as std::runtime_error, which says what is wrong"));
  }
  recording_ = false;
}

// In a backward pass, the forward op whose gradient is being computed.
const ir::Op* Tracer::forward_op() const {
  auto node = torch::autograd::get_current_node();
  if (section != ir::Section::Bwd || !node) return nullptr;
  auto owner = forward_ops_.find(static_cast<int64_t>(node->sequence_nr()));
  return owner == forward_ops_.end() ? nullptr : owner->second;
}

std::string Tracer::at_module() const {
  const ir::Op* forward = forward_op();
  const std::string& path = forward ? forward->module_path : module_path_;
  return path.empty() ? "" : " at " + path;
}

std::string Tracer::where(const c10::OperatorHandle& op) const { return opcode_of(op.operator_name()) + at_module(); }

void Tracer::declare(const at::Tensor& tensor, ir::Value* value) {
  SFSDP_CHECK(tensor.is_meta(), "declared tensor of %", value->name(), " is on ", tensor.device());
  StorageState& state = storages_[tensor.storage().unsafeGetStorageImpl()];
  state.base = value;
  state.base_geometry = geometry_of(tensor);
  state.views.clear();
  state.set_view(state.base_geometry, value);
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

// Kernels take tensors of one device, so a meta tensor stands for a real one. The graph holds a copy of its values: what
// the host writes later changes neither the tensor itself in the graph nor what was computed from it at capture.
at::Tensor Tracer::stand_in(const at::Tensor& real) {
  const Geometry geometry = geometry_of(real);
  const uint32_t version = real.is_inference() ? 0 : static_cast<uint32_t>(real._version());
  auto& known = stand_ins_[real.storage().unsafeGetStorageImpl()];
  for (const StandIn& held : known)
    if (held.version == version && held.geometry == geometry) return held.meta;
  c10::impl::ExcludeDispatchKeyGuard untraced(kTraceKey);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  alive_.push_back(real);
  const at::Tensor held = real.clone();
  at::Tensor meta = at::empty_strided(held.sizes(), held.strides(), held.options().device(at::kMeta));
  declare(meta, constant(held));
  known.push_back({geometry, version, meta});
  return meta;
}

// A wrapped number stays: it promotes dtypes in its own way, and kernels take it from any device.
void Tracer::replace_real(c10::IValue& value) {
  const auto stays = [](const at::Tensor& t) {
    return !t.defined() || t.is_meta() || t.unsafeGetTensorImpl()->is_wrapped_number();
  };
  if (value.isTensor()) {
    if (!stays(value.toTensor())) value = stand_in(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : value.toTensorVector()) list.push_back(stays(t) ? t : stand_in(t));
    value = std::move(list);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector())
      if (!t || stays(*t))
        list.push_back(t);
      else
        list.push_back(stand_in(*t));
    value = std::move(list);
  }
}

ir::Value* Tracer::StorageState::view(const Geometry& geometry) const {
  for (const auto& [known, value] : views)
    if (known == geometry) return value;
  return nullptr;
}

void Tracer::StorageState::set_view(const Geometry& geometry, ir::Value* value) {
  for (auto& [known, old] : views)
    if (known == geometry) {
      old = value;
      return;
    }
  views.emplace_back(geometry, value);
}

ir::Value* Tracer::value_of(const at::Tensor& tensor) {
  const bool number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  if (!tensor.is_meta()) return number ? constant(tensor) : value_of(stand_in(tensor));
  auto found = storages_.find(tensor.storage().unsafeGetStorageImpl());
  if (found == storages_.end()) refuse_outside(tensor);
  StorageState& state = found->second;
  const Geometry geometry = geometry_of(tensor);
  if (ir::Value* view = state.view(geometry)) return view;
  SFSDP_CHECK(geometry.dtype == state.base_geometry.dtype && !geometry.conj && !geometry.neg,
              "cannot rebuild a view of another dtype of %", state.base->name());
  ir::Op* op = graph.add("aten.as_strided", {state.base}, {{state.base->name() + ".view", type_of(tensor)}});
  set_strided(*op, tensor);
  note_position(*op);
  state.set_view(geometry, op->result());
  return op->result();
}

void Tracer::refuse_outside(const at::Tensor& tensor) const {
  throw UserError(concat("a ", tensor.key_set().has(kTraceKey) ? "tensor of another compiled module" : "meta tensor",
                         " of shape ", tensor.sizes(), " comes from outside of the captured step", at_module(),
                         "\n  expected a parameter, a registered buffer, a batch input or a tensor made in forward;"
                         " register it with register_buffer or pass it in the batch"));
}

void Tracer::redispatch(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) const {
  c10::impl::ExcludeDispatchKeyGuard exclude(kTraceKey);
  const auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kTraceKey);
  try {
    op.redispatchBoxed(below, stack);
  } catch (const c10::NotImplementedError& error) {
    refuse(op, error.what_without_backtrace());
  } catch (const c10::Error& error) {
    if (touches_memory(error)) refuse_memory(" in " + where(op));
    throw UserError(concat(where(op), ": ", error.what_without_backtrace(),
                           "\n  expected a call that LibTorch accepts; the same forward on real tensors shows it too"));
  }
}

// Says why an op has no shape on meta tensors; `reason` is LibTorch's message. It names the op that failed: the one
// that the user called, or one that it is made of.
void Tracer::refuse(const c10::OperatorHandle& op, const std::string& reason) const {
  std::string made_of;
  std::optional<c10::OperatorHandle> failed = op;
  const size_t first = std::min(reason.find("aten::"), reason.size());
  std::string quoted = reason.substr(first, reason.find_first_of("' \n", first) - first);
  if (quoted.ends_with(':')) quoted.pop_back();
  const size_t dot = quoted.find('.');
  const c10::OperatorName name(quoted.substr(0, dot), dot == std::string::npos ? "" : quoted.substr(dot + 1));
  if (auto found = c10::Dispatcher::singleton().findOp(name); found && name != op.operator_name()) {
    failed = found;
    made_of = " (it calls " + opcode_of(name) + ")";
  }
  if (failed->hasTag(at::Tag::dynamic_output_shape) || failed->hasTag(at::Tag::data_dependent_output))
    throw UserError(concat(where(op), made_of, " gives a shape that depends on data, so it cannot be captured",
                           "\n  expected ", instead_of(failed->operator_name().name)));
  throw UserError(concat(where(op), made_of, " has no shape function, so it cannot be captured\n  expected ",
                         instead_of(failed->operator_name().name)));
}

// torch::equal, as torch::nn::MultiheadAttention calls it to find self-attention. Two values of one shape are taken as
// different, and the step checks at run time that they are.
bool Tracer::equal(const c10::OperatorHandle& op, const Call& call) {
  const at::Tensor &a = call.tensors[0], &b = call.tensors[1];
  if (a.sizes() != b.sizes()) return false;
  ir::Value *left = value_of(a), *right = value_of(b);
  if (left == right) return true;
  constexpr int kMost = 1000;  // a loop that ends when two tensors are equal would never end
  if (++comparisons_ > kMost) refuse_read(op, call);
  const ir::Type truth = ir::Type::tensor(ir::DType::b1, {}),
                 truths = ir::pointwise_type(ir::DType::b1, {{left, 0, left->type()}, {right, 0, right->type()}});
  const auto add = [&](const char* opcode, std::vector<ir::Value*> operands, const ir::Type& type) {
    ir::Op* added = graph.add(opcode, std::move(operands), {{"", type}});
    note_position(*added);
    return added;
  };
  ir::Value* same = add("aten.all", {add("aten.eq.Tensor", {left, right}, truths)->result()}, truth)->result();
  ir::Value* differ = add("aten.logical_not", {same}, truth)->result();
  add("aten._functional_assert_async.msg", {differ, differ}, truth)->attrs["assert_msg"] =
      "two tensors are equal that torch::equal was told are not, as capture has no values; pass one tensor for both";
  return false;
}

void Tracer::refuse_read(const c10::OperatorHandle& op, const Call& call) const {
  std::string read = "a tensor";
  for (const at::Tensor& t : call.tensors)
    if (t.defined() && t.is_meta()) read = concat("a tensor of shape ", t.sizes());
  throw UserError(concat(where(op), " reads the value of ", read,
                         " during capture (.item(), a condition, a loop bound or a size from data)",
                         "\n  expected shapes and branches that do not depend on data; use torch::where or a mask, or"
                         " compute the value before the step and pass it in the batch"));
}

void Tracer::refuse_sparse(const c10::OperatorHandle& op, std::span<const at::Tensor> tensors, const char* role) const {
  for (const at::Tensor& t : tensors)
    if (t.defined() && t.layout() != at::kStrided)
      throw UserError(concat(where(op), " ", role, " a ", t.layout(), " tensor of shape ", t.sizes(),
                             "\n  expected dense tensors: sparse(false) in the options of torch::nn::Embedding and"
                             " EmbeddingBag, to_dense() elsewhere"));
}

const Tracer::Signature& Tracer::signature_of(const c10::OperatorHandle& op) {
  auto [place, fresh] = signatures_.try_emplace(&op.operator_name());
  Signature& signature = place->second;
  if (!fresh) return signature;
  signature.opcode = opcode_of(op.operator_name());
  for (const c10::Argument& argument : op.schema().arguments()) {
    using Kind = Signature::Kind;
    const Kind kind = takes_tensor(argument)        ? Kind::Tensor
                      : takes_tensor_list(argument) ? Kind::TensorList
                                                    : Kind::Other;
    signature.parameters.push_back({kind, writes(argument), argument.name() == "device"});
  }
  return signature;
}

// What the call takes, as it stands before the op runs. Returns whether the op belongs to the step: it reads a tensor
// of the step, or makes one without naming a device, or where those of the step are: constant.to(x.device()).
bool Tracer::read_arguments(const c10::OperatorHandle& op, torch::jit::Stack& stack, Call& call) {
  const auto& parameters = signature_of(op).parameters;
  const size_t count = parameters.size();
  const size_t base = stack.size() - count;
  for (size_t i = 0; i < count; ++i) {
    if (parameters[i].kind == Signature::Kind::Other) continue;
    const size_t first = call.tensors.size();
    collect(stack[base + i], call.tensors);
    if (parameters[i].written)
      for (size_t t = first; t < call.tensors.size(); ++t) call.written.push_back(call.tensors[t]);
  }
  bool has_tensor = false, has_real = false, tracked = false;
  for (const at::Tensor& t : call.tensors) {
    if (!t.defined()) continue;
    if (t.key_set().has(kTraceKey)) refuse_outside(t);  // before a kernel sees the key
    has_tensor = true;
    (t.is_meta() ? tracked : has_real) = true;
  }
  for (size_t i = 0; i < count && !tracked; ++i) {
    c10::IValue& argument = stack[base + i];
    if (!has_tensor && parameters[i].device && argument.isNone()) argument = c10::Device(c10::DeviceType::Meta);
    tracked = argument.isDevice() && argument.toDevice().is_meta();
  }
  if (tracked) refuse_sparse(op, call.tensors, "takes");
  for (const at::Tensor& t : call.written)
    if (tracked && t.defined() && !t.is_meta())
      throw UserError(concat(where(op), " writes into a tensor of shape ", t.sizes(),
                             " from outside of the captured step",
                             "\n  expected a registered buffer, which is kept from step to step; register it with"
                             " register_buffer"));
  for (size_t i = 0; i < count && tracked && has_real; ++i) replace_real(stack[base + i]);
  call.arguments.assign(stack.end() - static_cast<ptrdiff_t>(count), stack.end());
  return tracked;
}

void Tracer::record(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (!recording_) return redispatch(op, keys, stack);
  Call call;
  const bool tracked = read_arguments(op, *stack, call);
  const std::string& name = op.operator_name().name;
  if (tracked && name == "aten::_local_scalar_dense") refuse_read(op, call);
  if (tracked && name == "aten::equal") {
    const bool answer = equal(op, call);
    torch::jit::drop(*stack, op.schema().arguments().size());
    stack->emplace_back(answer);
    return;
  }
  const bool reshapes = tracked && op.hasTag(at::Tag::inplace_view);
  size_t bytes = 0;
  if (reshapes) {
    call.reshaped = value_of(call.tensors[0]);
    bytes = call.tensors[0].storage().nbytes();
  }
  redispatch(op, keys, stack);
  if (reshapes && (bytes != call.tensors[0].storage().nbytes() || name == "aten::set_"))
    throw UserError(concat(where(op), " gives its argument other memory, which cannot be captured",
                           "\n  expected a tensor made at its final shape; in place of torch::nn::CrossMapLRN2d,"
                           " torch::nn::LocalResponseNorm"));
  if (tracked) bind_outputs(op, call, *stack);  // else: real tensors only, folded at capture
}

// The operands, lists and attributes of `target`'s call with the recorded arguments; `called` is what the user called.
ir::Op* Tracer::add_op(const c10::OperatorHandle& called, const c10::OperatorHandle& target, const Call& call,
                       std::vector<ir::Graph::NewResult> results) {
  const Signature& signature = signature_of(target);
  std::vector<ir::Value*> operands;
  std::vector<ir::Op::OperandList> lists;
  ir::Attrs attrs;
  const auto operand = [&](const c10::IValue& value) {
    const bool present = value.isTensor() && value.toTensor().defined();
    const bool before = operands.empty() && call.reshaped;
    operands.push_back(before ? call.reshaped : present ? value_of(value.toTensor()) : nullptr);
  };
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    const c10::Argument& argument = target.schema().arguments()[i];
    const c10::IValue& value = call.arguments[i];
    if (signature.parameters[i].kind == Signature::Kind::Tensor) {
      operand(value);
    } else if (signature.parameters[i].kind == Signature::Kind::TensorList) {
      const int first = static_cast<int>(operands.size());
      if (!value.isNone())
        for (const c10::IValue& element : value.toListRef()) operand(element);
      lists.push_back({first, static_cast<int>(operands.size()) - first});
    } else if (value.isDevice() || value.isGenerator()) {
      continue;  // the executor's own
    } else if (argument.default_value() && *argument.default_value() == value) {
      continue;
    } else if (!value.isNone()) {
      attrs[argument.name()] = attr_of(value, argument, [&] { return where(called); });
    }
  }
  ir::Op* recorded = graph.add(signature.opcode, std::move(operands), std::move(results));
  recorded->operand_lists = std::move(lists);
  recorded->attrs = std::move(attrs);
  note_position(*recorded);
  check_product(*recorded);
  return recorded;
}

// What the functional form of an in-place op returns: its strides are its own choice, not those of the tensor that the
// in-place op wrote to.
std::vector<at::Tensor> Tracer::functional_results(const c10::OperatorHandle& twin, const Call& call) const {
  c10::impl::ExcludeDispatchKeyGuard untraced(kTraceKey);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  torch::jit::Stack stack(call.arguments.begin(), call.arguments.end());
  try {
    twin.callBoxed(stack);
  } catch (const c10::NotImplementedError& error) {
    refuse(twin, error.what_without_backtrace());
  }
  std::vector<at::Tensor> results;
  for (const c10::IValue& value : stack) collect(value, results);
  return results;
}

void Tracer::bind_outputs(const c10::OperatorHandle& op, Call& call, const torch::jit::Stack& stack) {
  std::vector<at::Tensor> outputs;
  const size_t returns = op.schema().returns().size();
  for (size_t i = 0; i < returns; ++i) collect(stack[stack.size() - returns + i], outputs);
  refuse_sparse(op, outputs, "gives");
  if (call.reshaped) call.written.clear();  // another look at the same memory

  // Views that change nothing (detach, view to the same shape) are the value they look at.
  const auto known = [&](const at::Tensor& t) {
    if (!t.defined()) return false;
    auto found = storages_.find(t.storage().unsafeGetStorageImpl());
    return found != storages_.end() && found->second.view(geometry_of(t)) != nullptr;
  };
  if (!outputs.empty() && call.written.empty() && std::ranges::all_of(outputs, known)) return;

  const bool mutates_hidden = op.operator_name().name == "aten::native_batch_norm" && call.tensors.size() >= 5 &&
                              call.tensors[3].defined() && call.arguments[5].toBool();
  if (mutates_hidden) call.written = {call.tensors[3], call.tensors[4]};
  std::optional<c10::OperatorHandle> target = op;
  if (!call.written.empty() || call.reshaped) {
    target = functional_twin(op);
    if (!target)
      throw UserError(concat(where(op), " writes into its argument and has no functional form",
                             "\n  expected an op such as add_ or copy_; use the op that returns a new tensor"));
  }
  if (!call.written.empty()) outputs = functional_results(*target, call);
  std::vector<ir::Graph::NewResult> results;
  for (const at::Tensor& t : outputs) results.push_back({"", type_of(t)});
  ir::Op* recorded = add_op(op, *target, call, std::move(results));

  if (call.written.empty()) return bind_results(recorded, outputs);
  // In-place ops return what they wrote; batch norm its outputs, then the running statistics.
  SFSDP_CHECK(outputs.size() >= call.written.size(), where(op), " updates ", call.written.size());
  const size_t own = outputs.size() - call.written.size();
  if (own > 0) {
    std::vector<at::Tensor> made;
    for (size_t i = 0; i < own; ++i) made.push_back(stack[stack.size() - returns + i].toTensor());
    bind_results(recorded, made);
  }
  for (size_t i = 0; i < call.written.size(); ++i)
    write(call.written[i], recorded->result(static_cast<int>(own + i)), outputs[own + i]);
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
    state.set_view(geometry_of(t), value);
  }
}

// `made` has the strides of `value`. Whatever is not the whole storage, laid out as it was, is written into a copy of
// it, so that every reader sees the layout that the trace saw.
void Tracer::write(const at::Tensor& target, ir::Value* value, const at::Tensor& made) {
  StorageState& state = storages_.at(target.storage().unsafeGetStorageImpl());
  const Geometry geometry = geometry_of(target);
  if (geometry == state.base_geometry && same_layout(target, made)) {
    state.base = value;
  } else {
    ir::Op* op =
        graph.add("aten.as_strided_scatter", {state.base, value}, {{state.base->name() + ".set", state.base->type()}});
    set_strided(*op, target);
    note_position(*op);
    state.base = op->result();
  }
  state.views.clear();  // other views are rebuilt from the new base when they are next read
  state.set_view(state.base_geometry, state.base);
}

void Tracer::note_position(ir::Op& op) {
  op.section = section;
  if (section == ir::Section::Bwd) {
    op.bwd_of = forward_op();
    if (op.bwd_of) op.module_path = op.bwd_of->module_path;
    return;
  }
  // The C++ frontend has no forward hooks: unless the model says so, an op stands where the last parameter read lives.
  const std::string* said = ModuleScope::current();
  if (said) module_path_ = *said;
  for (const ir::Value* operand : op.operands)
    if (!said && operand && operand->producer()->is("param")) {
      module_path_ = operand->producer()->module_path;
      break;
    }
  op.module_path = module_path_;
  // Autograd numbers a node just before it calls down to this key.
  const int64_t sequence = static_cast<int64_t>(at::sequence_number::peek()) - 1;
  forward_ops_.emplace(sequence, &op);
}

}  // namespace sfsdp::capture
