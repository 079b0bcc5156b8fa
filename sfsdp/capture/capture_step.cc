// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/capture/capture_step.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <unordered_map>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/capture/dispatch_key.h"
#include "sfsdp/capture/lora.h"
#include "sfsdp/capture/meta_kernels.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/capture/tracer.h"
#include "sfsdp/ir/builder.h"

namespace sfsdp::capture {
namespace {

// "layers.3.attention.wq.weight" -> "layers.3.attention.wq"
std::string owner_path(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

at::Tensor meta_like(const StateTensor& s, c10::ScalarType dtype) {
  return at::empty(s.shape, at::TensorOptions(dtype).device(at::kMeta));
}

// Every handle to the module's tensor sees the new one, which `set_data` would refuse between cpu and meta.
void replace(const at::Tensor& target, const at::Tensor& source) {
  const bool requires_grad = target.requires_grad();
  target.unsafeGetTensorImpl()->shallow_copy_from(source.getIntrusivePtr());
  if (target.is_floating_point()) target.set_requires_grad(requires_grad);
}

// The module's tensors outside of a trace: an op on one reaches the tracer, which says where the values are.
at::Tensor guarded_like(const StateTensor& s) {
  const at::Tensor meta = meta_like(s, s.dtype);
  at::Tensor guarded = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(meta.storage()),
                                                                meta.key_set().add(kTraceKey), meta.dtype());
  guarded.unsafeGetTensorImpl()->set_sizes_and_strides(meta.sizes(), meta.strides());
  return guarded;
}

struct Handle {
  std::string name;
  at::Tensor tensor;
  bool is_buffer;
};

std::vector<Handle> handles_of(torch::nn::Module& module) {
  std::vector<Handle> handles;
  for (const auto& p : module.named_parameters()) handles.push_back({p.key(), p.value(), false});
  for (const auto& b : module.named_buffers())
    if (b.value().defined()) handles.push_back({b.key(), b.value(), true});
  return handles;
}

// From the first byte of a tensor's elements in their storage to after the last.
std::pair<int64_t, int64_t> extent_of(const at::Tensor& t) {
  int64_t last = t.storage_offset();
  for (int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
  const auto size = static_cast<int64_t>(t.itemsize());
  return {t.storage_offset() * size, (last + 1) * size};
}

// What is written to one of two tensors over one memory would not reach the other.
void check_own_memory(const std::vector<Handle>& handles) {
  std::unordered_map<c10::StorageImpl*, std::vector<const Handle*>> by_storage;
  for (const Handle& h : handles) {
    if (h.tensor.numel() == 0 || !h.tensor.has_storage()) continue;
    const auto [begin, end] = extent_of(h.tensor);
    auto& others = by_storage[h.tensor.storage().unsafeGetStorageImpl()];
    for (const Handle* other : others) {
      const auto [other_begin, other_end] = extent_of(other->tensor);
      if (!h.tensor.is_same(other->tensor) && begin < other_end && other_begin < end)
        throw UserError(concat(other->name, " and ", h.name, " share memory, but the step would hold each by itself",
                               "\n  expected tensors of their own, such as a clone(); or one tensor registered under"
                               " both names, which ties them"));
    }
    others.push_back(&h);
  }
}

// The module's tensors, tied ones once, matched to `state` by name.
std::vector<at::Tensor> tensors_of(torch::nn::Module& module, const std::vector<StateTensor>& state) {
  std::unordered_map<std::string, at::Tensor> by_name;
  for (const Handle& h : handles_of(module)) by_name[h.name] = h.tensor;
  std::vector<at::Tensor> tensors;
  for (const StateTensor& s : state) {
    auto found = by_name.find(s.name);
    SFSDP_CHECK(found != by_name.end(), "module lost its tensor ", s.name);
    tensors.push_back(found->second);
  }
  return tensors;
}

// Puts the module in evaluation mode for a while; submodules that were in it on purpose stay in it.
class EvalMode {
 public:
  EvalMode(torch::nn::Module& module, bool training) {
    if (training) return;
    was_training_.emplace_back(&module, module.is_training());
    for (const auto& m : module.modules(/*include_self=*/false)) was_training_.emplace_back(m.get(), m->is_training());
    module.eval();
  }
  ~EvalMode() {
    for (const auto& [module, training] : was_training_)
      module->train(training);  // outer ones first: it sets all below
  }
  EvalMode(const EvalMode&) = delete;

 private:
  std::vector<std::pair<torch::nn::Module*, bool>> was_training_;
};

// Guards the module's tensors again when the trace ends, however it ends.
class GuardAfterTrace {
 public:
  GuardAfterTrace(const std::vector<at::Tensor>& tensors, const std::vector<StateTensor>& state)
      : tensors_(tensors), state_(state) {}
  ~GuardAfterTrace() {
    for (size_t i = 0; i < tensors_.size(); ++i) replace(tensors_[i], guarded_like(state_[i]));
  }
  GuardAfterTrace(const GuardAfterTrace&) = delete;

 private:
  const std::vector<at::Tensor>& tensors_;
  const std::vector<StateTensor>& state_;
};

// Gives the module's tensors back what they were when the trace ends, however it ends.
class RestoreAfterTrace {
 public:
  explicit RestoreAfterTrace(const std::vector<at::Tensor>& tensors) : tensors_(tensors) {
    for (const at::Tensor& t : tensors_)
      were_.push_back(at::Tensor(t.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true)));
  }
  ~RestoreAfterTrace() {
    for (size_t i = 0; i < tensors_.size(); ++i) replace(tensors_[i], were_[i]);
  }
  RestoreAfterTrace(const RestoreAfterTrace&) = delete;

 private:
  const std::vector<at::Tensor>& tensors_;
  std::vector<at::Tensor> were_;
};

ir::Value* add_state(Tracer& tracer, const StateTensor& s, ir::DType dtype) {
  ir::Attrs attrs = {{"name", s.name}};
  if (!s.is_buffer && !s.trainable) attrs["trainable"] = false;
  if (!s.is_buffer && dtype_of(s.dtype) != dtype) attrs["storage"] = dtype_of(s.dtype);
  return ir::Builder(tracer.graph)
      .at_end(ir::Section::Init, owner_path(s.name))
      .value(s.is_buffer ? "state" : "param", {}, ir::Type::tensor(dtype, s.shape), s.name, attrs);
}

// The module's tensors as they enter a trace.
struct TracedState {
  std::vector<ir::Value*> roots;                                 // by place in the state
  std::vector<std::pair<at::Tensor, const ir::Value*>> weights;  // parameters
};

TracedState declare_state(Tracer& tracer, const std::vector<StateTensor>& state, const std::vector<at::Tensor>& tensors,
                          std::optional<ir::DType> param_dtype) {
  TracedState traced;
  forget_reads_of_adapted();
  for (size_t i = 0; i < state.size(); ++i) {
    const StateTensor& s = state[i];
    const bool cast = param_dtype && !s.is_buffer && c10::isFloatingType(s.dtype);
    const auto dtype = cast ? scalar_type_of(*param_dtype) : s.dtype;
    replace(tensors[i], meta_like(s, dtype));
    ir::Value* root = add_state(tracer, s, dtype_of(dtype));
    tracer.declare(tensors[i], root);
    traced.roots.push_back(root);
    if (!s.is_buffer) traced.weights.emplace_back(tensors[i], root);
  }
  return traced;
}

Batch declare_batch(Tracer& tracer, const Batch& example) {
  Batch batch;
  for (size_t i = 0; i < example.size(); ++i) {
    const at::Tensor& real = example[i];
    at::Tensor meta = at::empty(real.sizes(), real.options().device(at::kMeta));
    const std::string name = concat("batch.", i);
    tracer.declare(
        meta,
        ir::Builder(tracer.graph).at_end(ir::Section::Init).value("input", {}, type_of(meta), name, {{"name", name}}));
    batch.push_back(meta);
  }
  return batch;
}

void check_batch(const Batch& example) {
  for (size_t i = 0; i < example.size(); ++i)
    if (!example[i].defined() || example[i].layout() != at::kStrided)
      throw UserError(concat("tensor ", i, " of the batch is ", example[i].defined() ? "sparse" : "undefined",
                             "\n  expected ", example.size(), " dense tensors"));
}

void check_loss(const LossValue& loss, bool training) {
  if (!loss.value.defined() || loss.value.numel() != 1 || !loss.value.is_floating_point())
    throw UserError(concat("the loss function returned a tensor of shape ",
                           loss.value.defined() ? concat(loss.value.sizes()) : "undefined",
                           "\n  expected one floating number (the mean, or a sum with its count)"));
  if (training && !loss.value.requires_grad())
    throw UserError(
        "the loss has no gradient: no trainable parameter leads to it\n  expected a loss computed from the module's"
        " parameters without NoGradGuard, detach() or integer casts on the way");
}

// Counts are added up over micro-batches and ranks: the sum of a mask's u8 would wrap, that of a half round.
at::Tensor wide_count(const at::Tensor& count) {
  if (!count.defined() || count.numel() != 1 || count.requires_grad() || count.is_complex())
    throw UserError(concat("the count of the loss is ", count.defined() ? concat(type_of(count)) : "undefined",
                           count.defined() && count.requires_grad() ? " that depends on parameters" : "",
                           "\n  expected one number of targets; two losses are to be added up"));
  return count.reshape({}).to(count.is_floating_point() ? at::kDouble : at::kLong);
}

// Parameters are read where they are gathered, and written by the optimizer alone.
//   before: the parameter itself
void check_parameter_unwritten(Tracer& tracer, const StateTensor& s, const ir::Value* before,
                               const at::Tensor& tensor) {
  const ir::Value* after = tracer.value_of(tensor);
  if (after == before) return;
  const ir::Op& writer = *after->producer();
  const std::string cure =
      writer.opcode.starts_with("aten.embedding_renorm")
          ? "without max_norm; scale the rows that are read in forward, or the tensor of state_dict() between steps"
          : "a buffer for what forward updates (register_buffer): buffers are carried from step to step";
  throw UserError(
      concat("parameter ", s.name, " is written in forward by ", ir::opcode_at(writer), "\n  expected ", cure));
}

// A member that is given another tensor lets go of the registered one, which nobody writes from then on.
//   handles: how many each of `tensors` had before forward
void check_members_kept(const std::vector<StateTensor>& state, const std::vector<at::Tensor>& tensors,
                        const std::vector<size_t>& handles) {
  for (size_t i = 0; i < state.size(); ++i)
    if (state[i].is_buffer && tensors[i].use_count() < handles[i])
      throw UserError(concat("forward gives the member of buffer ", state[i].name,
                             " another tensor, which the next step would not see",
                             "\n  expected an update in place: mean.mul_(0.5).add_(x, 0.5), not mean = mean * 0.5 +"
                             " x * 0.5"));
}

// Mixed precision casts floating inputs at the root, inside the trace.
void cast_inputs(Batch& batch, std::optional<ir::DType> dtype, const std::vector<size_t>& uncast) {
  for (size_t i = 0; dtype && i < batch.size(); ++i)
    if (batch[i].is_floating_point() && std::ranges::find(uncast, i) == uncast.end())
      batch[i] = batch[i].to(scalar_type_of(*dtype));
}

// Refuses a parameter that forward has written; a buffer that it has is carried where `written` says so.
void carry_buffers(Tracer& tracer, const std::vector<StateTensor>& state, const TracedState& traced,
                   const std::vector<at::Tensor>& tensors, bool written) {
  for (size_t i = 0; i < state.size(); ++i) {
    ir::Value* before = traced.roots[i];
    if (!state[i].is_buffer) check_parameter_unwritten(tracer, state[i], before, tensors[i]);
    if (!state[i].is_buffer || !written) continue;
    if (ir::Value* after = tracer.value_of(tensors[i]); after != before)
      tracer.graph.carries.push_back({before, after});
  }
}

// What the module says of its tensors, tied ones once, and one handle to each.
std::vector<std::pair<StateTensor, at::Tensor>> described(torch::nn::Module& module) {
  std::vector<std::pair<StateTensor, at::Tensor>> all;
  std::unordered_map<c10::TensorImpl*, size_t> seen;
  for (const Handle& h : handles_of(module)) {
    auto [place, fresh] = seen.try_emplace(h.tensor.unsafeGetTensorImpl(), all.size());
    if (!fresh) {
      all[place->second].first.other_names.push_back(h.name);
      continue;
    }
    StateTensor s;
    s.name = h.name;
    s.shape = h.tensor.sizes().vec();
    s.dtype = h.tensor.scalar_type();
    s.is_buffer = h.is_buffer;
    s.trainable = !h.is_buffer && h.tensor.requires_grad();
    all.emplace_back(std::move(s), h.tensor);
  }
  return all;
}

}  // namespace

std::vector<StateTensor> look_at_state(torch::nn::Module& module) {
  std::vector<StateTensor> state;
  for (auto& [s, tensor] : described(module)) {
    if (!tensor.is_meta() && !tensor.key_set().has(kTraceKey)) s.value = tensor;
    state.push_back(std::move(s));
  }
  return state;
}

std::vector<StateTensor> take_state(torch::nn::Module& module) {
  std::vector<StateTensor> state;
  check_own_memory(handles_of(module));
  for (auto& [s, tensor] : described(module)) {
    if (tensor.key_set().has(kTraceKey))
      throw UserError(concat("compile: the values of ", s.name, " are gone: an earlier compile has taken them over",
                             "\n  expected a module of its own for each compile: build another; its Step takes the"
                             " values of the first by load_state_dict(first.state_dict())"));
    if (tensor.is_meta()) {
      s.recipe = init_recipe(tensor);
      if (!s.recipe.program)
        throw UserError(concat("parameter ", s.name, " is a meta tensor that nothing says how to initialise",
                               "\n  expected a module built by sfsdp::meta_init, or one with real weights"));
    } else {
      s.value = tensor.detach().contiguous();
    }
    replace(tensor, guarded_like(s));
    state.push_back(std::move(s));
  }
  return state;
}

Batch with_more_rows(const Batch& example, const std::vector<int64_t>& batch_dims, int64_t factor) {
  Batch batch;
  for (size_t i = 0; i < example.size(); ++i) {
    std::vector<int64_t> sizes = example[i].sizes().vec();
    const int64_t dim = !batch_dims.empty() ? batch_dims[i] : sizes.empty() ? -1 : 0;
    if (dim >= 0) sizes.at(static_cast<size_t>(dim)) *= factor;
    batch.push_back(at::empty(sizes, example[i].options().device(at::kMeta)));
  }
  return batch;
}

std::string shape_key(const Batch& batch) {
  std::vector<std::string> types;
  for (const at::Tensor& t : batch) types.push_back(t.defined() ? concat(contiguous_type_of(t)) : "none");
  return join(types, " ");
}

CapturedStep capture_step(torch::nn::Module& module, const std::vector<StateTensor>& state, const LossFunction& loss,
                          const Batch& example, const CaptureOptions& options) {
  std::vector<at::Tensor> tensors = tensors_of(module, state);
  EvalMode mode(module, options.training);
  GuardAfterTrace guard(tensors, state);
  Tracer tracer;
  const TracedState traced = declare_state(tracer, state, tensors, options.param_dtype);
  std::vector<size_t> trained;
  std::vector<at::Tensor> leaves;
  for (size_t i = 0; i < state.size(); ++i)
    if (state[i].trainable) {
      trained.push_back(i);
      leaves.push_back(tensors[i]);
    }
  if (options.training && leaves.empty())
    throw UserError(concat("module ", module.name(), " has no trainable parameter, so there is nothing to train",
                           "\n  expected register_parameter for what is to be trained, with requires_grad"));
  check_batch(example);
  Batch batch = declare_batch(tracer, example);

  std::vector<size_t> handles;
  for (const at::Tensor& t : tensors) handles.push_back(t.use_count());
  LossValue value;
  std::vector<at::Tensor> gradients;
  tracer.run([&] {
    at::AutoGradMode grad_mode(options.training);
    tracer.section = ir::Section::Fwd;
    cast_inputs(batch, options.param_dtype, options.uncast);
    value = loss(batch);
    check_reads_of_adapted(tracer.graph, traced.weights);
    check_loss(value, options.training);
    tracer.graph.outputs.push_back(tracer.value_of(value.value));
    if (value.count) tracer.graph.outputs.push_back(tracer.value_of(wide_count(*value.count)));
    if (!options.training) return;
    tracer.section = ir::Section::Bwd;
    ir::Value* seed = ir::Builder(tracer.graph)
                          .at_end(ir::Section::Bwd)
                          .value("full", {}, type_of(value.value), "seed", {{"value", 1.0}});
    at::Tensor seed_tensor;
    {
      c10::impl::ExcludeDispatchKeyGuard untraced(c10::DispatchKey::Fake);
      seed_tensor = at::empty(value.value.sizes(), value.value.options());
    }
    tracer.declare(seed_tensor, seed);
    gradients = torch::autograd::grad({value.value}, leaves, {seed_tensor}, /*retain_graph=*/false,
                                      /*create_graph=*/false, /*allow_unused=*/true);
  });
  check_members_kept(state, tensors, handles);
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;  // unused in this step: not updated, as in eager
    const StateTensor& s = state[trained[i]];
    ir::Value* gradient = tracer.value_of(gradients[i]);
    ir::Builder(tracer.graph)
        .at_end(ir::Section::Bwd, owner_path(s.name))
        .value("gradient", {gradient}, gradient->type(), s.name + ".grad", {{"param", s.name}});
  }
  carry_buffers(tracer, state, traced, tensors, options.training);
  return {std::move(tracer.graph), std::move(tracer.constants)};
}

CapturedStep capture_forward(torch::nn::Module& module, const std::vector<StateTensor>& state,
                             const ForwardFunction& forward, const Batch& example,
                             std::optional<ir::DType> param_dtype) {
  Tracer tracer;
  std::vector<at::Tensor> tensors = tensors_of(module, state);
  EvalMode mode(module, /*training=*/false);
  RestoreAfterTrace restore(tensors);
  const TracedState traced = declare_state(tracer, state, tensors, param_dtype);
  check_batch(example);
  Batch batch = declare_batch(tracer, example);
  std::vector<size_t> handles;
  for (const at::Tensor& t : tensors) handles.push_back(t.use_count());
  tracer.run([&] {
    at::NoGradGuard no_grad;
    const WholeAttention whole_attention;
    cast_inputs(batch, param_dtype, {});
    const std::vector<at::Tensor> outputs = forward(batch);
    check_reads_of_adapted(tracer.graph, traced.weights);
    if (outputs.empty() || !std::ranges::all_of(outputs, [](const at::Tensor& t) { return t.defined(); }))
      throw UserError("forward returned no tensor\n  expected one or several, all of them defined");
    for (const at::Tensor& t : outputs) tracer.graph.outputs.push_back(tracer.value_of(t));
  });
  check_members_kept(state, tensors, handles);
  carry_buffers(tracer, state, traced, tensors, /*written=*/true);
  return {std::move(tracer.graph), std::move(tracer.constants)};
}

}  // namespace sfsdp::capture
