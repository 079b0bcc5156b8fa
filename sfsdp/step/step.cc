// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/step/step.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <mutex>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/exec/random_ops.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/step/initialise.h"

namespace sfsdp {
namespace {

using Clock = std::chrono::steady_clock;

// "i64[8, 128] i64[8, 128]": what a captured graph is valid for.
std::string shape_key(const Batch& batch) {
  std::string key;
  for (const at::Tensor& t : batch) key += concat(capture::type_of(t), " ");
  return key;
}

std::span<std::byte> bytes_of(const at::Tensor& t) {
  return {static_cast<std::byte*>(t.mutable_data_ptr()), static_cast<size_t>(t.nbytes())};
}

exec::Groups make_groups(const Strategy& strategy, comm::CommWorld* world) {
  exec::Groups groups;
  if (strategy.mesh.world_size() == 1) return groups;
  if (!world || world->world_size() != strategy.mesh.world_size())
    throw UserError(concat("compile: mesh ", strategy.mesh, " has ", strategy.mesh.world_size(), " ranks, the run ",
                           world ? world->world_size() : 1, "\n  expected as many; start that many ranks"));
  const auto add = [&](const AxisList& axes) {
    std::vector<int> ranks;
    for (int64_t r : strategy.mesh.ranks_of_group(world->rank(), axes)) ranks.push_back(static_cast<int>(r));
    const std::string key = exec::axis_key(ir::Attr(axes));
    groups[key] = world->group(key, ranks);
  };
  const AxisList data = strategy.data_axes();
  for (const std::string& axis : data) add({axis});
  if (data.size() > 1) add(data);
  return groups;
}

}  // namespace

struct Program::Cache {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<Variant>> variants;
};

Program::Program(std::shared_ptr<torch::nn::Module> module, capture::LossFunction loss, Optimizer optimizer,
                 const Batch& example, Strategy strategy, CompileOptions options)
    : module_(std::move(module)),
      loss_(std::move(loss)),
      optimizer_(optimizer),
      strategy_(std::move(strategy)),
      options_(options),
      cache_(std::make_shared<Cache>()) {
  if (options_.micro_batches < 1)
    throw UserError(concat("compile: micro_batches = ", options_.micro_batches, "\n  expected at least 1"));
  state_ = capture::take_state(*module_);
  training(example);
}

const Program::Variant& Program::training(const Batch& example) { return variant(example, true); }
const Program::Variant& Program::evaluation(const Batch& example) { return variant(example, false); }

const Program::Variant& Program::variant(const Batch& example, bool training) {
  std::lock_guard lock(cache_->mutex);
  const std::string kind = training ? "training" : "evaluation";
  auto& held = cache_->variants[concat(kind, " ", shape_key(example))];
  if (held) return *held;
  held = build(example, training);
  const auto compiled =
      std::ranges::count_if(cache_->variants, [&](const auto& v) { return v.first.starts_with(kind); });
  if (compiled > 1)
    say(concat("compiled the ", kind, " step for another batch, ", shape_key(example), "in ",
               static_cast<int64_t>(held->capture_ms + held->complete_ms), " ms (", compiled, " shapes so far)"));
  return *held;
}

void Program::say(const std::string& notice) const {
  if (options_.notify)
    options_.notify(notice);
  else
    std::cerr << "sfsdp: " + notice + "\n";
}

void Program::check_recapture(const Batch& example) {
  const std::vector<std::string> before = split(ir::print(training(example).graph), '\n');
  std::vector<std::string> now;
  {
    std::lock_guard lock(cache_->mutex);
    now = split(ir::print(build(example, true)->graph), '\n');
  }
  for (size_t i = 0; i < std::max(before.size(), now.size()); ++i) {
    const std::string was = i < before.size() ? before[i] : "(nothing)", is = i < now.size() ? now[i] : "(nothing)";
    if (was != is)
      throw UserError(concat("the captured step has changed; first difference:\n  was", was, "\n  now", is,
                             "\n  expected the same graph: a number that varies from step to step must come in the"
                             " batch as a tensor"));
  }
}

std::unique_ptr<Program::Variant> Program::build(const Batch& example, bool training) {
  capture::CaptureOptions capture_options;
  capture_options.param_dtype = strategy_.options.mixed_precision.param_dtype;
  capture_options.training = training;
  // A mean is shared out here, once; a (sum, count) is divided by the global count in the clip section.
  capture_options.seed_gradient = 1.0 / static_cast<double>(strategy_.data_ranks() * options_.micro_batches);
  const auto start = Clock::now();
  auto captured = capture::capture_step(*module_, state_, loss_, example, capture_options);
  const auto captured_at = Clock::now();
  if (options_.rng == exec::Rng::Counter) exec::number_random_ops(captured.graph);
  if (captured.graph.outputs.size() > 1)
    for (const auto& op : captured.graph.ops())
      if (op->is("full") && op->result()->name() == "seed") op->attrs["value"] = 1.0;
  parallel::apply_data_parallel(captured.graph, strategy_);
  if (training) {
    const auto states =
        step::append_update(captured.graph, optimizer_, strategy_, {options_.max_norm, options_.micro_batches});
    if (tensors_.empty()) lay_out(captured.graph, states);
  } else {
    step::append_loss(captured.graph, strategy_, 1);
  }
  ir::verify_or_throw(captured.graph);
  auto variant = std::make_unique<Variant>();
  variant->graph = std::move(captured.graph);
  variant->constants = std::move(captured.constants);
  variant->capture_ms = std::chrono::duration<double, std::milli>(captured_at - start).count();
  variant->complete_ms = std::chrono::duration<double, std::milli>(Clock::now() - captured_at).count();
  return variant;
}

void Program::lay_out(const ir::Graph& graph, const std::vector<step::OptimizerState>& optimizer_state) {
  std::map<std::string, const ir::Op*> ops;
  for (const auto& op : graph.ops())
    if (op->is("param") || op->is("state")) ops[op->attr<std::string>("name")] = op.get();
  std::map<std::string, size_t> index;
  for (size_t i = 0; i < state_.size(); ++i) {
    const capture::StateTensor& s = state_[i];
    const ir::Op* op = ops.at(s.name);
    StoredTensor t{s.name,
                   s.shape,
                   op->result()->type().shape(),
                   s.dtype,
                   op->has_attr("rows"),
                   s.trainable,
                   static_cast<int64_t>(i)};
    index[t.name] = tensors_.size();
    tensors_.push_back(std::move(t));
  }
  for (const step::OptimizerState& s : optimizer_state) {
    StoredTensor t;
    t.name = s.name;
    if (!s.param.empty()) {
      const StoredTensor& param = tensors_[index.at(s.param)];
      t.global_shape = param.global_shape;
      t.local_shape = param.local_shape;
      t.sharded = param.sharded;
    }
    tensors_.push_back(std::move(t));
  }
}

int64_t Program::num_parameters() const {
  int64_t sum = 0;
  for (const capture::StateTensor& s : state_)
    if (!s.is_buffer) sum += c10::multiply_integers(s.shape);
  return sum;
}

struct Step::Impl {
  exec::Groups groups;
  exec::DataPosition position;
  int64_t shard_rank = 0, shard_size = 1;
  std::map<std::string, at::Tensor, std::less<>> state;  // padded local tensors
  struct Running {
    std::unique_ptr<exec::ReferenceExecutor> executor;
  };
  std::map<const Program::Variant*, Running> executors;
  int64_t peak = 0;

  // Rows of dimension 0 that are this rank's, without padding.
  Chunk rows(const StoredTensor& t) const {
    if (t.global_shape.empty()) return {0, 1};
    if (!t.sharded) return {0, t.global_shape[0]};
    return chunk_of(t.global_shape[0], shard_size, shard_rank);
  }
  at::Tensor unpadded(const StoredTensor& t) const {
    const at::Tensor& local = state.at(t.name);
    return t.global_shape.empty() ? local : local.narrow(0, 0, rows(t).length);
  }
  exec::ReferenceExecutor& executor(const Program::Variant& variant, exec::Rng rng) {
    auto& running = executors[&variant];
    if (!running.executor)
      running.executor =
          std::make_unique<exec::ReferenceExecutor>(variant.graph, variant.constants, groups, position, rng);
    return *running.executor;
  }
};

Step::Step(std::shared_ptr<Program> program, comm::CommWorld* world)
    : program_(std::move(program)), impl_(std::make_unique<Impl>()) {
  const Strategy& strategy = program_->strategy();
  lr = learning_rate(program_->optimizer());
  impl_->groups = make_groups(strategy, world);
  const int64_t rank = world ? world->rank() : 0;
  impl_->position = {strategy.mesh.group_rank(rank, strategy.data_axes()), strategy.data_ranks()};
  if (strategy.axis_size("dp_shard") > 1) {
    impl_->shard_rank = strategy.mesh.axis_rank(rank, "dp_shard");
    impl_->shard_size = strategy.axis_size("dp_shard");
  }
  for (const StoredTensor& t : program_->tensors()) {
    at::Tensor local = at::zeros(t.local_shape, at::TensorOptions(t.dtype));
    if (t.source >= 0) {
      const Chunk rows = impl_->rows(t);
      if (rows.length > 0) {
        const auto& source = program_->state()[static_cast<size_t>(t.source)];
        at::Tensor values = step::initialise_rows(source, program_->options().seed, {rows.offset, rows.length});
        (t.global_shape.empty() ? local : local.narrow(0, 0, rows.length)).copy_(values);
      }
    }
    impl_->state[t.name] = local;
  }
}
Step::~Step() = default;
Step::Step(Step&&) noexcept = default;

StepResult Step::operator()(const std::vector<Batch>& micro_batches) {
  if (static_cast<int64_t>(micro_batches.size()) != program_->options().micro_batches)
    throw UserError(concat("step: got ", micro_batches.size(), " micro-batches\n  expected micro_batches = ",
                           program_->options().micro_batches, ", as compiled"));
  auto& executor = this->executor(micro_batches[0]);
  executor.state = impl_->state;
  exec::StepScalars scalars;
  scalars.lr = lr;
  scalars.step = static_cast<double>(step + 1);
  scalars.seed = static_cast<double>(program_->options().seed);
  const auto outputs = executor.run(micro_batches, scalars);
  impl_->state = executor.state;
  impl_->peak = executor.peak_bytes();
  ++step;
  return {outputs[0].item<double>(), outputs[1].item<double>(), outputs[2].item<float>() != 0.0f};
}

exec::ReferenceExecutor& Step::executor(const Batch& example) {
  return impl_->executor(program_->training(example), program_->options().rng);
}

double Step::eval(const Batch& batch) {
  auto& executor = impl_->executor(program_->evaluation(batch), program_->options().rng);
  executor.state = impl_->state;
  return executor.run({batch}, {})[0].item<double>();
}

int64_t Step::peak_bytes() const { return impl_->peak; }

namespace {

const StoredTensor& find_tensor(const Program& program, const std::string& name) {
  for (const StoredTensor& t : program.tensors()) {
    if (t.name == name) return t;
    if (t.source < 0) continue;
    const auto& others = program.state()[static_cast<size_t>(t.source)].other_names;
    if (std::ranges::find(others, name) != others.end()) return t;
  }
  throw UserError(concat("no parameter, buffer or optimizer tensor '", name,
                         "'\n  expected a path such as layers.0.weight, or one with .exp_avg behind it"));
}

}  // namespace

at::Tensor Step::gather(const std::string& name) {
  const StoredTensor& t = find_tensor(*program_, name);
  const at::Tensor& local = impl_->state.at(t.name);
  if (!t.sharded) return local.clone();
  std::vector<int64_t> padded = t.local_shape;
  padded[0] *= impl_->shard_size;
  at::Tensor whole = at::empty(padded, local.options());
  impl_->groups.at("dp_shard")->all_gather(bytes_of(local.contiguous()), bytes_of(whole), {"gather " + name, ""});
  return whole.narrow(0, 0, t.global_shape[0]).clone();
}

std::map<std::string, at::Tensor> Step::state_dict() const {
  std::map<std::string, at::Tensor> values;
  for (const StoredTensor& t : program_->tensors()) values[t.name] = impl_->unpadded(t);
  return values;
}

Chunk Step::rows_of(const std::string& name) const { return impl_->rows(find_tensor(*program_, name)); }

void Step::load_state_dict(const std::map<std::string, at::Tensor>& values) {
  for (const auto& [name, value] : values) {
    const StoredTensor& t = find_tensor(*program_, name);
    at::Tensor local = impl_->unpadded(t);
    if (value.sizes() == local.sizes() && !(t.sharded && value.sizes() == t.global_shape)) {
      local.copy_(value);
    } else if (value.sizes() == at::IntArrayRef(t.global_shape)) {
      const Chunk rows = impl_->rows(t);
      local.copy_(value.narrow(0, rows.offset, rows.length));
    } else {
      throw UserError(concat("load_state_dict: ", name, " has shape ", value.sizes(), "\n  expected the whole ",
                             at::IntArrayRef(t.global_shape), " or this rank's ", local.sizes()));
    }
  }
}

}  // namespace sfsdp
