// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/step/step.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <iostream>
#include <iterator>
#include <mutex>
#include <random>
#include <utility>

#include "sfsdp/base/error.h"
#include "sfsdp/base/least_recent.h"
#include "sfsdp/base/philox.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/compile/complete_step.h"
#include "sfsdp/exec/memory_counter.h"
#include "sfsdp/exec/random_ops.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/passes/pipeline.h"
#include "sfsdp/plan/cuts.h"
#include "sfsdp/step/constants.h"
#include "sfsdp/step/initialise.h"

namespace sfsdp {
namespace {

using Clock = std::chrono::steady_clock;
constexpr const char* kNameKernels = "name_kernels";

// "element 1 was 0.5, now 0.25"; empty: the same bits. Takes two dense tensors of one type.
std::string first_difference(const at::Tensor& was, const at::Tensor& now) {
  if (std::memcmp(was.const_data_ptr(), now.const_data_ptr(), was.nbytes()) == 0) return "";
  const at::Tensor a = was.flatten(), b = now.flatten();
  int64_t i = 0;
  while (i + 1 < a.numel() && at::equal(a[i], b[i])) ++i;
  return concat("element ", i, " was ", a[i].item(), ", now ", b[i].item());
}

void check_options(const CompileOptions& options, int64_t ranks) {
  const auto refuse = [](const std::string& what, const std::string& expected) {
    throw UserError(concat("compile: CompileOptions::", what, "\n  expected ", expected));
  };
  if (!(options.max_norm >= 0) || std::isinf(options.max_norm))
    refuse(concat("max_norm = ", options.max_norm), "a norm above 0, or 0: gradients are not clipped");
  if (options.max_variants < 1) refuse(concat("max_variants = ", options.max_variants), "at least 1");
  if (options.micro_batches < 1) refuse(concat("micro_batches = ", options.micro_batches), "at least 1");
  if (options.pipeline.loss_chunks < 1)
    refuse(concat("pipeline.loss_chunks = ", options.pipeline.loss_chunks), "at least 1");
  if (!(options.tune.memory_gib >= 0))
    refuse(concat("tune.memory_gib = ", options.tune.memory_gib), "GiB for a rank, or 0: all of the machine's");
  if (options.rng == exec::Rng::Eager && ranks > 1)
    refuse(concat("rng = Eager on ", ranks, " ranks"),
           "one rank: each would draw the numbers of the first; or rng = Counter");
  if (options.rng == exec::Rng::Eager &&
      (options.pipeline.remat.mode != passes::RematMode::None || options.tune.choose_remat))
    refuse("rng = Eager with pipeline.remat or tune.choose_remat",
           "neither: what is computed again would draw other random numbers; or rng = Counter, which draws the same");
}

void check_batch_dims(const std::vector<int64_t>& dims, const Batch& example) {
  bool fits = dims.empty() || dims.size() == example.size();
  for (size_t i = 0; fits && i < dims.size(); ++i) fits = dims[i] >= -1 && dims[i] < example[i].dim();
  if (!fits)
    throw UserError(concat("compile: DataParallelOptions::batch_dims = ", ir::Attr(dims), " for a batch of ",
                           capture::shape_key(example),
                           "\n  expected a dimension of each tensor, or -1 where it has no batch"));
}

// One that is undefined, or of a dtype that the IR has not, is refused by capture.
std::vector<ir::Type> types_of(const Batch& batch) {
  std::vector<ir::Type> types;
  for (const at::Tensor& t : batch) types.push_back(t.defined() ? capture::contiguous_type_of(t) : ir::Type());
  return types;
}

// The loss function indexes its batch without a check, and an op that a dtype does not fit would say less.
void check_like(const Batch& batch, const std::vector<ir::Type>& example) {
  if (batch.size() != example.size())
    throw UserError(concat("step: the batch has ", batch.size(), " tensors: ", capture::shape_key(batch),
                           "\n  expected ", example.size(), ", as in the example batch of compile"));
  const std::vector<ir::Type> types = types_of(batch);
  for (size_t i = 0; i < batch.size(); ++i)
    if (batch[i].defined() && (types[i].dtype != example[i].dtype || types[i].dims.size() != example[i].dims.size()))
      throw UserError(concat("step: batch.", i, " is ", types[i], ", was ", example[i],
                             " in the example of compile\n  expected the same dtype and number of dimensions"));
}

// State is laid out once, by the example.
void check_has_state(const std::vector<step::OptimizerState>& needed, const std::vector<StoredTensor>& stored) {
  for (const step::OptimizerState& s : needed)
    if (std::ranges::find(stored, s.name, &StoredTensor::name) == stored.end())
      throw UserError(concat("parameter ", s.param,
                             " has a gradient for this batch, but had none for the example of"
                             " compile, so there is no ",
                             s.name, "\n  expected an example that trains all parameters; adding 0 * ", s.param,
                             ".sum() to the loss gives it a gradient for every batch"));
}

}  // namespace

struct Program::Cache {
  explicit Cache(int64_t most) : variants(static_cast<size_t>(std::max<int64_t>(most, 1))) {}

  std::mutex mutex;
  std::vector<int64_t> copied;  // by place in Program::state: how many Steps have their part of its real weights
  // By kind and shapes, as "training f32[2, 4]".
  std::string first;                                       // Program::first_, which is none of `variants`
  LeastRecent<std::string, Held<const Variant>> variants;  // kept beside it
  std::map<std::string, tune::RematChoice> remat;
  std::map<std::string, int64_t> compiled;  // by kind, how often
  bool said_gone = false;                   // that a variant had to go
};

Program::Program(std::shared_ptr<torch::nn::Module> module, capture::LossFunction loss, Optimizer optimizer,
                 const Batch& example, Strategy strategy, CompileOptions options)
    : module_(std::move(module)),
      loss_(std::move(loss)),
      optimizer_(optimizer),
      strategy_(std::move(strategy)),
      options_(std::move(options)),
      example_(types_of(example)),
      id_((uint64_t{std::random_device()()} << 32) | std::random_device()()),
      cache_(std::make_shared<Cache>(options_.max_variants)) {
  check_optimizer(optimizer_);
  check_options(options_, strategy_.mesh.world_size());
  check_batch_dims(strategy_.options.batch_dims, example);
  if (options_.executor == ExecutorKind::Planned)
    exec::count_memory();  // its kernels' own values go to the plan's workspace
  state_ = capture::take_state(*module_);
  first_ = training(example);
}

Held<const Program::Variant> Program::variant(const Batch& example, bool training) {
  check_like(example, example_);
  std::lock_guard lock(cache_->mutex);
  const std::string kind = training ? "training" : "evaluation", shapes = capture::shape_key(example),
                    key = concat(kind, " ", shapes);
  if (key == cache_->first) return first_;
  if (const auto* held = cache_->variants.find(key)) return *held;
  const Held<const Variant> made{std::shared_ptr<const Variant>(build(example, training, options_.pipeline.observer))};
  const int64_t compiled = ++cache_->compiled[kind];
  if (compiled > 1)
    say(concat("compiled the ", kind, " step for another batch, ", shapes, " in ",
               static_cast<int64_t>(made->capture_ms + made->complete_ms), " ms (", compiled, " so far)"));
  if (cache_->first.empty())
    cache_->first = key;
  else
    keep(key, made);
  return made;
}

void Program::keep(const std::string& key, const Held<const Variant>& made) {
  const auto gone = cache_->variants.insert(key, made);
  if (!gone) return;
  const Held<const Variant>& old = gone->second;
  old->let_go = true;
  cache_->remat.erase(gone->first);
  if (std::exchange(cache_->said_gone, true)) return;
  say(concat(
      "let go of the step for ", gone->first, ": CompileOptions::max_variants = ", options_.max_variants,
      " are kept, and the one used longest ago makes place; it is compiled again when it comes back. Pad batches to"
      " fewer shapes, or raise it (said once)"));
}

uint64_t Program::hash_of(const Variant& variant) const {
  std::lock_guard lock(cache_->mutex);
  if (!variant.plan_hash) variant.plan_hash = plan::hash(variant.plan);
  return *variant.plan_hash;
}

plan::StorageLayout Program::storage_layout() const {
  const std::lock_guard lock(cache_->mutex);
  return layout_;
}

void Program::say(const std::string& notice) const {
  if (options_.notify)
    options_.notify(notice);
  else
    std::cerr << "sfsdp: " + notice + "\n";
}

void Program::check_recapture(const Batch& example) {
  const Held<const Variant> before = training(example);
  std::unique_ptr<Variant> now;
  {
    std::lock_guard lock(cache_->mutex);
    now = build(example, true, {});  // seen by nobody: it is built to be compared
  }
  const std::string advice =
      "\n  expected the same graph: what varies from step to step must come in the batch as a tensor, or be a buffer";
  const auto was = split(ir::print(before->graph), '\n'), is = split(ir::print(now->graph), '\n');
  for (size_t i = 0; i < std::max(was.size(), is.size()); ++i) {
    const std::string line = i < was.size() ? was[i] : "(nothing)", other = i < is.size() ? is[i] : "(nothing)";
    if (line != other)
      throw UserError(
          concat("the captured step has changed; first difference:\n  was", line, "\n  now", other, advice));
  }
  for (const auto& op : before->graph.ops()) {
    if (!op->is("constant")) continue;
    const auto index = static_cast<size_t>(op->attr<int64_t>("index"));
    const std::string differs = first_difference(before->constants[index], now->constants[index]);
    if (!differs.empty())
      throw UserError(concat("the captured step has changed: the tensor that ", step::readers_of(*op, before->graph),
                             " read, a constant of the graph, has other values\n  ", differs, advice));
  }
}

std::unique_ptr<Program::Variant> Program::build(const Batch& example, bool training,
                                                 const passes::PassObserver& observer) {
  capture::CaptureOptions capture_options;
  capture_options.param_dtype = strategy_.options.mixed_precision.param_dtype;
  capture_options.uncast = options_.uncast;
  capture_options.training = training;
  const auto start = Clock::now();
  auto captured = capture::capture_step(*module_, state_, loss_, example, capture_options);
  const auto captured_at = Clock::now();
  if (options_.rng == exec::Rng::Counter) {
    const std::string wrong = exec::number_random_ops(captured.graph, [&](int64_t factor) {
      const Batch more = capture::with_more_rows(example, strategy_.options.batch_dims, factor);
      return capture::capture_step(*module_, state_, loss_, more, capture_options).graph;
    });
    if (!wrong.empty() && strategy_.data_ranks() * options_.micro_batches > 1) throw UserError(wrong);
  }
  const auto is_half = [](c10::ScalarType type) { return c10::isReducedFloatingType(type); };
  const bool half_precision =
      (capture_options.param_dtype && is_half(capture::scalar_type_of(*capture_options.param_dtype))) ||
      std::ranges::any_of(state_, is_half, &capture::StateTensor::dtype);
  step::StepOptions step_options = {.optimizer = optimizer_,
                                    .max_norm = options_.max_norm,
                                    .skip_non_finite = options_.skip_non_finite,
                                    .micro_batches = options_.micro_batches,
                                    .balance = options_.balance,
                                    .tune = options_.tune,
                                    .needs_product_sites = tensors_.empty()};
  step_options.pipeline.remat = options_.pipeline.remat;  // attention is chosen by what backward computes again
  step_options.pipeline.fuse = options_.pipeline.fuse;
  const std::vector<step::OptimizerState> states =
      step::place_step(captured.graph, strategy_, step_options, training, half_precision);
  if (!tensors_.empty()) check_has_state(states, tensors_);
  auto variant = std::make_unique<Variant>();
  const plan::GlobalShapes shapes = plan::global_shapes(captured.graph);
  passes::PipelineOptions passes = pipeline();
  passes.observer = observer;
  if (!options_.tune.choose_remat) {
    variant->remat.options = passes.remat;
  } else if (training) {  // chosen once: captured again, the step is to be the same
    const std::string key = concat("training ", capture::shape_key(example));
    if (!cache_->remat.contains(key))
      cache_->remat[key] = tune::choose_remat(captured.graph, passes, options_.tune, buckets_);
    variant->remat = cache_->remat[key];
  }
  passes.remat = variant->remat.options;
  // The first graph's shapes are known once all other passes have run: its kernels are named then.
  const std::vector<std::string>& disabled = options_.pipeline.disable;
  const bool chooses = training && tensors_.empty() && options_.choose_products &&
                       std::ranges::none_of(disabled, [](const auto& name) { return trim(name) == kNameKernels; });
  if (chooses) passes.disable.emplace_back(kNameKernels);
  variant->passes = tune::run_pipeline(captured.graph, passes, options_.tune, buckets_);
  if (chooses) name_products(captured.graph, *variant, observer);
  if (training && tensors_.empty()) lay_out(captured.graph, shapes, states);
  variant->plan = step::plan_step(std::move(captured.graph), options_.target, layout_, shapes);
  variant->constants = std::move(captured.constants);
  variant->plan.constant_bits = step::bits_of_constants(variant->plan, variant->constants);
  variant->capture_ms = std::chrono::duration<double, std::milli>(captured_at - start).count();
  variant->complete_ms = std::chrono::duration<double, std::milli>(Clock::now() - captured_at).count();
  return variant;
}

passes::PipelineOptions Program::pipeline() const {
  return step::pipeline_of(strategy_, options_.pipeline, options_.target);
}

std::string Program::pass_list() const {
  std::string text;
  for (const passes::PassCall& call : passes::pipeline_passes(pipeline(), std::nullopt))
    text += passes::to_string(call) + "\n";
  return text;
}

void Program::name_products(ir::Graph& graph, Variant& variant, const passes::PassObserver& observer) {
  passes::PipelineOptions& pipeline = options_.pipeline;
  pipeline.kernels.products_by_shape = passes::to_string(options_.choose_products(passes::product_shapes(graph)));
  if (!pipeline.kernels.is_any()) return;
  passes::RunOptions run = {.checks = pipeline.checks};
  if (observer)
    run.observer = [&](const std::string& name, const ir::Graph& seen) {
      if (name != "start") observer(name, seen);
    };
  const passes::PassCall call = passes::make_call(kNameKernels, pipeline.kernels);
  std::ranges::move(passes::run_passes(graph, {&call, 1}, run), std::back_inserter(variant.passes));
}

void Program::lay_out(const ir::Graph& graph, const plan::GlobalShapes& shapes,
                      const std::vector<step::OptimizerState>& optimizer_state) {
  std::map<std::string, StoredTensor> places;  // by the name of a parameter or buffer
  for (const auto& op : graph.ops()) {
    if (!op->is("param") && !op->is("state")) continue;
    StoredTensor t;
    t.buffer = op->attr<std::string>("name");
    t.shard = op->result()->type().numel();
    t.sharded = op->has_attr("rows");
    if (!op->result()->type().dims.empty()) t.shard_axes = op->result()->type().dims[0].split;
    if (!op->has_attr("members")) {
      places[t.buffer] = t;
      continue;
    }
    t.sharded = op->attr<int64_t>("size") != t.shard;
    t.in_bucket = true;
    const auto& members = op->attr<std::vector<std::string>>("members");
    for (size_t i = 0; i < members.size(); ++i) {
      t.offset = op->attr<std::vector<int64_t>>("offsets")[i];
      t.cuts = plan::cuts_of_member(*op, i);
      places[members[i]] = t;
    }
  }
  std::map<std::string, size_t> index;
  for (size_t i = 0; i < state_.size(); ++i) {
    const capture::StateTensor& s = state_[i];
    StoredTensor t = places.at(s.name);
    t.name = s.name;
    t.global_shape = s.shape;
    if (const auto whole = shapes.find(s.name); whole != shapes.end() && whole->second.size() > s.shape.size())
      t.block_shape = whole->second;
    t.dtype = s.dtype;
    t.trainable = s.trainable;
    t.source = static_cast<int64_t>(i);
    index[t.name] = tensors_.size();
    tensors_.push_back(std::move(t));
  }
  for (const step::OptimizerState& s : optimizer_state) {
    StoredTensor t;
    if (s.param.empty()) {
      t.buffer = s.name;
      t.shard = 1;
    } else {
      t = tensors_[index.at(s.param)];
      t.buffer += s.name.substr(s.param.size());  // "layers.3.flat" + ".exp_avg"
      t.trainable = false;
      t.source = -1;
    }
    t.name = s.name;
    tensors_.push_back(std::move(t));
  }
}

at::Tensor Program::take_start(size_t source, const plan::Box& box, int64_t steps) {
  capture::StateTensor& tensor = state_[source];
  if (tensor.recipe.program) return step::initialise_box(tensor, options_.seed, box);
  const std::lock_guard lock(cache_->mutex);
  if (!tensor.value.defined())
    throw UserError(concat("compile: the values of ", tensor.name, " are gone: an earlier Step has taken them over",
                           "\n  expected one Step per rank for a module with real weights; compile a module that has",
                           " its values, or one built by sfsdp::meta_init"));
  const at::Tensor mine = step::initialise_box(tensor, options_.seed, box);
  cache_->copied.resize(state_.size());
  if (++cache_->copied[source] == steps) tensor.value = at::Tensor();
  return mine;
}

int64_t Program::num_parameters() const {
  int64_t sum = 0;
  for (const capture::StateTensor& s : state_)
    if (!s.is_buffer) sum += c10::multiply_integers(s.shape);
  return sum;
}

}  // namespace sfsdp
