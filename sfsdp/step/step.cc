// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/step/step.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <iostream>
#include <mutex>
#include <random>
#include <set>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/philox.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/comm/same_texts.h"
#include "sfsdp/exec/random_ops.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/passes/pipeline.h"
#include "sfsdp/plan/verify/axis_states.h"
#include "sfsdp/plan/verify/rendezvous.h"
#include "sfsdp/step/initialise.h"

namespace sfsdp {
namespace {

using Clock = std::chrono::steady_clock;

// "i64[8, 128] i64[8, 128]": what a captured graph is valid for. Strides are none of it: tensors are made contiguous.
std::string shape_key(const Batch& batch) {
  std::vector<std::string> types;
  for (const at::Tensor& t : batch)
    types.push_back(t.defined() ? concat(ir::Type::tensor(capture::dtype_of(t.scalar_type()), t.sizes().vec()))
                                : "none");
  return join(types, " ");
}

std::span<std::byte> bytes_of(const at::Tensor& t) {
  return {static_cast<std::byte*>(t.mutable_data_ptr()), static_cast<size_t>(t.nbytes())};
}

exec::Groups make_groups(const Strategy& strategy, comm::CommWorld& world) {
  exec::Groups groups;
  const auto add = [&](const AxisList& axes) {
    std::vector<int> ranks;
    for (int64_t r : strategy.mesh.ranks_of_group(world.rank(), axes)) ranks.push_back(static_cast<int>(r));
    const std::string key = exec::axis_key(ir::Attr(axes));
    groups[key] = world.group(key, ranks);
  };
  const AxisList data = strategy.data_axes();
  for (const std::string& axis : data) add({axis});
  if (data.size() > 1) add(data);
  return groups;
}

std::string meaning_of_difference(const std::string& ours, const std::string& theirs) {
  const std::string met = ir::compare_collectives(ir::parse_or_throw(ours), ir::parse_or_throw(theirs));
  return met.empty() ? "their collectives are the same" : "they would not meet: " + met;
}

// "aten.mul.Tensor at blocks.gate, ...": at most three.
std::string readers_of(const ir::Op& op, const ir::Graph& graph) {
  std::string text;
  int count = 0;
  for (const auto& reader : graph.ops())
    if (std::ranges::find(reader->operands, op.result()) != reader->operands.end() && ++count <= 3)
      text +=
          concat(count > 1 ? ", " : "", reader->opcode, reader->module_path.empty() ? "" : " at ", reader->module_path);
  return count > 3 ? text + ", ..." : text;
}

// "element 1 was 0.5, now 0.25"; empty: the same bits. Of two dense tensors of one type.
std::string first_difference(const at::Tensor& was, const at::Tensor& now) {
  if (std::memcmp(was.const_data_ptr(), now.const_data_ptr(), was.nbytes()) == 0) return "";
  const at::Tensor a = was.flatten(), b = now.flatten();
  int64_t i = 0;
  while (i + 1 < a.numel() && at::equal(a[i], b[i])) ++i;
  return concat("element ", i, " was ", a[i].item(), ", now ", b[i].item());
}

comm::RankText text_of(const ir::Graph& graph) {
  return {"programs", ir::print(graph), "expected the same model, batch shapes, options and passes on all ranks",
          meaning_of_difference};
}

// A pass list can differ and leave the same graph, until a batch of another shape is compiled.
void check_same_program(const Program& program, comm::CommWorld& world) {
  const comm::RankText graph = text_of(program.first_graph());
  const auto& layout = program.storage_layout();
  const comm::RankText texts[] = {{"options", concat("CompileOptions::seed = ", program.options().seed), graph.advice},
                                  {"passes", program.pass_list(), graph.advice},
                                  {"storage layouts", layout ? plan::print(*layout) : "", graph.advice},
                                  graph};
  comm::expect_same_texts(world, texts);
}

// How many ranks share the program of this one: threads of a process.
int64_t count_sharing(uint64_t program_id, comm::CommWorld& world) {
  return std::ranges::count(comm::gather_numbers(world, {program_id}, "program id"), program_id);
}

void check_options(const CompileOptions& options) {
  const auto refuse = [](const std::string& what, const std::string& expected) {
    throw UserError(concat("compile: CompileOptions::", what, "\n  expected ", expected));
  };
  if (!(options.max_norm >= 0) || std::isinf(options.max_norm))
    refuse(concat("max_norm = ", options.max_norm), "a norm above 0, or 0: gradients are not clipped");
  if (options.micro_batches < 1) refuse(concat("micro_batches = ", options.micro_batches), "at least 1");
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
                           shape_key(example), "\n  expected a dimension of each tensor, or -1 where it has no batch"));
}

// All run through the graph of the first.
void check_micro_batches(const std::vector<Batch>& micro_batches, int64_t expected) {
  if (static_cast<int64_t>(micro_batches.size()) != expected)
    throw UserError(concat("step: got ", micro_batches.size(),
                           " micro-batches\n  expected CompileOptions::micro_batches = ", expected, ", as compiled"));
  const std::string first = shape_key(micro_batches[0]);
  for (size_t i = 1; i < micro_batches.size(); ++i)
    if (const std::string key = shape_key(micro_batches[i]); key != first)
      throw UserError(concat("step: micro-batch ", i, " has other shapes than micro-batch 0\n  expected ", first,
                             ", got ", key, "; make all micro-batches of a step alike: pad the last, or leave it out"));
}

}  // namespace

struct Program::Cache {
  std::mutex mutex;
  std::vector<int64_t> copied;  // by place in Program::state: how many Steps have their part of its real weights
  std::map<std::string, std::unique_ptr<Variant>> variants;
  std::map<const Variant*, uint64_t> hashes;       // of those that ranks have compared
  std::map<std::string, tune::RematChoice> remat;  // by the shapes of a training batch
};

Program::Program(std::shared_ptr<torch::nn::Module> module, capture::LossFunction loss, Optimizer optimizer,
                 const Batch& example, Strategy strategy, CompileOptions options)
    : module_(std::move(module)),
      loss_(std::move(loss)),
      optimizer_(optimizer),
      strategy_(std::move(strategy)),
      options_(std::move(options)),
      example_size_(example.size()),
      id_((uint64_t{std::random_device()()} << 32) | std::random_device()()),
      cache_(std::make_shared<Cache>()) {
  check_optimizer(optimizer_);
  check_options(options_);
  check_batch_dims(strategy_.options.batch_dims, example);
  state_ = capture::take_state(*module_);
  first_graph_ = &training(example).graph;
}

const Program::Variant& Program::training(const Batch& example) { return variant(example, true); }
const Program::Variant& Program::evaluation(const Batch& example) { return variant(example, false); }

const Program::Variant& Program::variant(const Batch& example, bool training) {
  if (example.size() != example_size_)  // the loss function indexes its batch without a check
    throw UserError(concat("step: the batch has ", example.size(), " tensors: ", shape_key(example), "\n  expected ",
                           example_size_, ", as in the example batch of compile"));
  std::lock_guard lock(cache_->mutex);
  const std::string kind = training ? "training" : "evaluation";
  auto& held = cache_->variants[concat(kind, " ", shape_key(example))];
  if (held) return *held;
  held = build(example, training, options_.pipeline.observer);
  const auto compiled =
      std::ranges::count_if(cache_->variants, [&](const auto& v) { return v.first.starts_with(kind); });
  if (compiled > 1)
    say(concat("compiled the ", kind, " step for another batch, ", shape_key(example), " in ",
               static_cast<int64_t>(held->capture_ms + held->complete_ms), " ms (", compiled, " shapes so far)"));
  return *held;
}

uint64_t Program::hash_of(const Variant& variant) const {
  std::lock_guard lock(cache_->mutex);
  const auto [place, fresh] = cache_->hashes.try_emplace(&variant);
  if (fresh) place->second = hash_path(ir::print(variant.graph));
  return place->second;
}

void Program::say(const std::string& notice) const {
  if (options_.notify)
    options_.notify(notice);
  else
    std::cerr << "sfsdp: " + notice + "\n";
}

void Program::check_recapture(const Batch& example) {
  const Variant& before = training(example);
  std::unique_ptr<Variant> now;
  {
    std::lock_guard lock(cache_->mutex);
    now = build(example, true, {});  // seen by nobody: it is built to be compared
  }
  const std::string advice =
      "\n  expected the same graph: what varies from step to step must come in the batch as a tensor, or be a buffer";
  const auto was = split(ir::print(before.graph), '\n'), is = split(ir::print(now->graph), '\n');
  for (size_t i = 0; i < std::max(was.size(), is.size()); ++i) {
    const std::string line = i < was.size() ? was[i] : "(nothing)", other = i < is.size() ? is[i] : "(nothing)";
    if (line != other)
      throw UserError(
          concat("the captured step has changed; first difference:\n  was", line, "\n  now", other, advice));
  }
  for (const auto& op : before.graph.ops()) {
    if (!op->is("constant")) continue;
    const auto index = static_cast<size_t>(op->attr<int64_t>("index"));
    const std::string differs = first_difference(before.constants[index], now->constants[index]);
    if (!differs.empty())
      throw UserError(concat("the captured step has changed: the tensor that ", readers_of(*op, before.graph),
                             " read, a constant of the graph, has other values\n  ", differs, advice));
  }
}

std::unique_ptr<Program::Variant> Program::build(const Batch& example, bool training,
                                                 const passes::PassObserver& observer) {
  capture::CaptureOptions capture_options;
  capture_options.param_dtype = strategy_.options.mixed_precision.param_dtype;
  capture_options.training = training;
  // A mean is shared out here, once; a (sum, count) is divided by the global count in the clip section.
  const auto is_half = [](c10::ScalarType type) { return c10::isReducedFloatingType(type); };
  const auto& param_dtype = capture_options.param_dtype;
  parallel::MeanShare share =
      parallel::share_of_mean(strategy_.data_ranks() * options_.micro_batches,
                              (param_dtype && is_half(capture::scalar_type_of(*param_dtype))) ||
                                  std::ranges::any_of(state_, is_half, &capture::StateTensor::dtype));
  capture_options.seed_gradient = share.seed;
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
  if (captured.graph.outputs.size() > 1) {
    share = {};
    for (const auto& op : captured.graph.ops())
      if (op->is("full") && op->result()->name() == "seed") op->attrs["value"] = 1.0;
  }
  if (training) captured.graph.micro_batches = options_.micro_batches;
  parallel::apply_data_parallel(captured.graph, strategy_, {share.rest});
  std::vector<step::OptimizerState> states;
  if (training)
    states = step::append_update(captured.graph, optimizer_, strategy_, {options_.max_norm, options_.skip_non_finite});
  else
    step::append_loss(captured.graph, strategy_);
  auto variant = std::make_unique<Variant>();
  passes::PipelineOptions passes = pipeline();
  passes.observer = observer;
  if (!options_.tune.choose_remat) {
    variant->remat.options = passes.remat;
  } else if (training) {  // chosen once: captured again, the step is to be the same
    const std::string shapes = shape_key(example);
    if (!cache_->remat.contains(shapes))
      cache_->remat[shapes] = tune::choose_remat(captured.graph, passes, options_.tune, layout_);
    variant->remat = cache_->remat[shapes];
  }
  passes.remat = variant->remat.options;
  variant->tuned = tune::run_pipeline(captured.graph, passes, options_.tune, layout_);
  if (training && tensors_.empty()) lay_out(captured.graph, states);
  ir::verify_or_throw(captured.graph);
  for (const std::string& wrong :
       {plan::check_rendezvous(strategy_.mesh, [&](int64_t) -> const ir::Graph& { return captured.graph; }),
        plan::check_axis_states(captured.graph)})
    if (!wrong.empty()) throw InternalError("the compiled step is not sound: " + wrong);
  variant->graph = std::move(captured.graph);
  variant->constants = std::move(captured.constants);
  variant->capture_ms = std::chrono::duration<double, std::milli>(captured_at - start).count();
  variant->complete_ms = std::chrono::duration<double, std::milli>(Clock::now() - captured_at).count();
  return variant;
}

passes::PipelineOptions Program::pipeline() const {
  passes::PipelineOptions options = options_.pipeline;
  options.flat = strategy_.options.layout == ParameterLayout::Flat;
  options.wrap.units = strategy_.options.units;
  const ZeroPlacements zero = zero_placements(strategy_.options.zero_stage);
  options.keep_whole = zero.parameters != zero.state;
  return options;
}

std::string Program::pass_list() const {
  std::string text;
  for (const passes::PassCall& call : passes::pipeline_passes(pipeline(), std::nullopt))
    text += passes::to_string(call) + "\n";
  return text;
}

void Program::lay_out(const ir::Graph& graph, const std::vector<step::OptimizerState>& optimizer_state) {
  std::map<std::string, StoredTensor> places;  // by the name of a parameter or buffer
  for (const auto& op : graph.ops()) {
    if (!op->is("param") && !op->is("state")) continue;
    StoredTensor t;
    t.buffer = op->attr<std::string>("name");
    t.shard = op->result()->type().numel();
    t.sharded = op->has_attr("rows");
    if (!op->has_attr("members")) {
      places[t.buffer] = t;
      continue;
    }
    t.sharded = op->attr<int64_t>("size") != t.shard;
    t.in_bucket = true;
    const auto& members = op->attr<std::vector<std::string>>("members");
    for (size_t i = 0; i < members.size(); ++i) {
      t.offset = op->attr<std::vector<int64_t>>("offsets")[i];
      places[members[i]] = t;
    }
  }
  std::map<std::string, size_t> index;
  for (size_t i = 0; i < state_.size(); ++i) {
    const capture::StateTensor& s = state_[i];
    StoredTensor t = places.at(s.name);
    t.name = s.name;
    t.global_shape = s.shape;
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

at::Tensor Program::take_start(size_t source, int64_t first, int64_t count, int64_t steps) {
  capture::StateTensor& tensor = state_[source];
  if (tensor.recipe.program) return step::initialise_range(tensor, options_.seed, first, count);
  const std::lock_guard lock(cache_->mutex);
  if (!tensor.value.defined())
    throw UserError(concat("compile: the values of ", tensor.name, " are gone: an earlier Step has taken them over",
                           "\n  expected one Step per rank for a module with real weights; compile a module that has",
                           " its values, or one built by sfsdp::meta_init"));
  const at::Tensor mine = step::initialise_range(tensor, options_.seed, first, count);
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

struct Step::Impl {
  comm::CommWorld* world = nullptr;  // null: one rank
  exec::Groups groups;
  exec::DataPosition position;
  std::shared_ptr<comm::Communicator> shards;            // those who share out the state; null: each rank has all of it
  std::map<std::string, at::Tensor, std::less<>> state;  // this rank's buffers, with padding
  struct Running {
    std::unique_ptr<exec::ReferenceExecutor> executor;
  };
  std::map<const Program::Variant*, Running> executors;
  // Whole copies (state with whole_of=) that are what their shards gather to. Anything that writes shards and leaves the
  // copy takes it out.
  std::set<std::string> refreshed;

  // The place of this rank's part in the whole buffer.
  int64_t begin_of(const StoredTensor& t) const { return t.sharded ? shards->rank() * t.shard : 0; }
  // Elements of the tensor that this rank holds. Nothing of it may lie here: an empty range at its end.
  Chunk range(const StoredTensor& t) const {
    const int64_t numel = c10::multiply_integers(t.global_shape);
    const int64_t begin = begin_of(t) - t.offset;
    const int64_t first = std::clamp(begin, int64_t{0}, numel);
    return {first, std::clamp(begin + t.shard, int64_t{0}, numel) - first};
  }
  // The tensor's part of this rank's buffer, flat.
  at::Tensor local(const StoredTensor& t) const {
    const Chunk mine = range(t);
    const int64_t begin = begin_of(t);
    return state.at(t.buffer).view({-1}).narrow(0, mine.length == 0 ? 0 : t.offset + mine.offset - begin, mine.length);
  }
  // The same as the user sees it.
  at::Tensor shaped(const StoredTensor& t) const {
    const Chunk mine = range(t);
    const int64_t numel = c10::multiply_integers(t.global_shape);
    if (mine.length == numel) return local(t).view(t.global_shape);
    if (t.global_shape.empty() || t.in_bucket) return local(t);
    std::vector<int64_t> rows = t.global_shape;
    rows[0] = rows[0] == 0 ? 0 : mine.length / (numel / rows[0]);
    return local(t).view(rows);
  }
  // Gathers the whole copies that `graph` reads and that are not up to date: a collective call, the same on all ranks.
  void refresh(const ir::Graph& graph) {
    for (const auto& op : graph.ops()) {
      if (!op->is("state") || !op->has_attr("whole_of")) continue;
      const auto& name = op->attr<std::string>("name");
      if (refreshed.contains(name)) continue;
      const ir::Type& type = op->result()->type();
      at::Tensor& whole = state[name];
      if (!whole.defined()) whole = at::empty(type.shape(), at::TensorOptions(capture::scalar_type_of(type.dtype)));
      const at::Tensor shard = state.at(op->attr<std::string>("whole_of")).to(whole.scalar_type()).contiguous();
      shards->all_gather(bytes_of(shard), bytes_of(whole), {"refresh " + name, ""});
      refreshed.insert(name);
    }
  }
  // After a step: copies that it did not carry on are those of the step before.
  void keep_refreshed(const ir::Graph& graph) {
    refreshed.clear();
    for (const ir::Carry& carry : graph.carries)
      if (const ir::Op& op = *carry.current->producer(); op.has_attr("whole_of"))
        refreshed.insert(op.attr<std::string>("name"));
  }
  // What this rank is about to run, when all ranks have found the same, with the same learning rate and number of steps:
  // a collective call. A rank whose `find` throws takes the others along, as they would wait for it.
  const Program::Variant& agree(const Step& step, const std::function<const Program::Variant&()>& find) {
    if (!world) return find();
    const comm::RankNumber numbers[] = {{"Step::lr", step.lr}, {"Step::step", static_cast<double>(step.step)}};
    const Program::Variant* variant = nullptr;
    try {
      variant = &find();
    } catch (const std::exception& error) {
      try {
        comm::expect_same_hash(*world, 0, {}, numbers, error.what());
      } catch (const std::exception&) {  // what the others throw; here the error itself says more
      }
      throw;
    }
    comm::expect_same_hash(
        *world, step.program().hash_of(*variant), [&] { return text_of(variant->graph); }, numbers);
    return *variant;
  }
  exec::ReferenceExecutor& executor(const Program::Variant& variant, exec::Rng rng) {
    auto& running = executors[&variant];
    if (!running.executor)
      running.executor =
          std::make_unique<exec::ReferenceExecutor>(variant.graph, variant.constants, groups, position, rng);
    return *running.executor;
  }
};

void check_ranks(const Strategy& strategy, const comm::CommWorld* world) {
  const int64_t expected = strategy.mesh.world_size(), got = world ? world->world_size() : 1;
  if (got == expected) return;
  throw UserError(concat(
      "compile: mesh ", strategy.mesh, " has ", expected, expected == 1 ? " rank" : " ranks", ", the run ", got,
      "\n  expected as many: ",
      got > expected ? concat("name all ranks in the mesh, such as {\"dp_shard\", world->world_size()}; a model that "
                              "each rank trains for itself is given no world")
      : world        ? concat("start ", expected, " ranks, or make the mesh smaller")
                     : "pass the world of sfsdp::init() to compile"));
}

Step::Step(std::shared_ptr<Program> program, comm::CommWorld* world)
    : program_(std::move(program)), impl_(std::make_unique<Impl>()) {
  const Strategy& strategy = program_->strategy();
  check_ranks(strategy, world);
  lr = learning_rate(program_->optimizer());
  int64_t sharing = 1;
  if (strategy.mesh.world_size() > 1) {
    impl_->world = world;
    impl_->groups = make_groups(strategy, *world);
    check_same_program(*program_, *world);
    sharing = count_sharing(program_->id_, *world);
  }
  const int64_t rank = world ? world->rank() : 0;
  impl_->position = {strategy.mesh.group_rank(rank, strategy.data_axes()), strategy.data_ranks()};
  if (const AxisList axes = strategy.shard_axes(); !axes.empty())
    impl_->shards = impl_->groups.at(exec::axis_key(ir::Attr(axes)));
  make_state(sharing);
}

// Buffer after buffer, so that real weights go as shards come; the optimizer's are last.
void Step::make_state(int64_t sharing) {
  std::map<std::string, const ir::Type*> types;
  for (const auto& op : program_->first_graph().ops())
    if (op->is("param") || op->is("state")) types[op->attr<std::string>("name")] = &op->result()->type();
  const auto make = [&](const std::string& buffer) {
    at::Tensor& tensor = impl_->state[buffer];
    const ir::Type& type = *types.at(buffer);
    if (!tensor.defined()) tensor = at::zeros(type.shape(), at::TensorOptions(capture::scalar_type_of(type.dtype)));
  };
  for (const StoredTensor& t : program_->tensors()) {
    if (t.source < 0) continue;
    make(t.buffer);
    const Chunk mine = impl_->range(t);
    const at::Tensor values = program_->take_start(static_cast<size_t>(t.source), mine.offset, mine.length, sharing);
    if (mine.length > 0) impl_->local(t).copy_(values);
  }
  for (const auto& [buffer, type] : types) make(buffer);
}
Step::~Step() = default;
Step::Step(Step&&) noexcept = default;

StepResult Step::operator()(const std::vector<Batch>& micro_batches) {
  const Program::Variant& variant = impl_->agree(*this, [&]() -> const Program::Variant& {
    check_micro_batches(micro_batches, program_->options().micro_batches);
    if (!(lr >= 0) || std::isinf(lr))
      throw UserError(concat("step: Step::lr = ", lr, "\n  expected 0 or more, finite"));
    return program_->training(micro_batches[0]);
  });
  const ir::Graph& graph = variant.graph;
  auto& executor = impl_->executor(variant, program_->options().rng);
  impl_->refresh(graph);
  executor.state = impl_->state;
  exec::StepScalars scalars;
  scalars.lr = lr;
  scalars.step = static_cast<double>(step + 1);
  scalars.seed = static_cast<double>(program_->options().seed);
  const auto outputs = executor.run(micro_batches, scalars);
  impl_->state = executor.state;
  impl_->keep_refreshed(graph);
  ++step;
  return {outputs[0].item<double>(), outputs[1].item<double>(), outputs[2].item<float>() != 0.0f};
}

exec::ReferenceExecutor& Step::executor(const Batch& example) {
  return impl_->executor(program_->training(example), program_->options().rng);
}

double Step::eval(const Batch& batch) {
  const Program::Variant& variant =
      impl_->agree(*this, [&]() -> const Program::Variant& { return program_->evaluation(batch); });
  auto& executor = impl_->executor(variant, program_->options().rng);
  impl_->refresh(variant.graph);
  executor.state = impl_->state;
  return executor.run({batch}, {})[0].item<double>();
}

namespace {

const StoredTensor& find_tensor(const Program& program, const std::string& name) {
  for (const StoredTensor& t : program.tensors()) {
    if (t.name == name) return t;
    if (t.source < 0) continue;
    const auto& others = program.state()[static_cast<size_t>(t.source)].other_names;
    if (std::ranges::find(others, name) != others.end()) return t;
  }
  throw UserError(concat("no parameter, buffer or optimizer tensor '", name,
                         "'\n  expected a path such as layers.0.weight, or one with .exp_avg after it"));
}

}  // namespace

at::Tensor Step::gather(const std::string& name) {
  const StoredTensor& t = find_tensor(*program_, name);
  if (!t.sharded) return impl_->local(t).view(t.global_shape).clone();
  const at::Tensor& buffer = impl_->state.at(t.buffer);
  at::Tensor whole = at::empty({t.shard * impl_->shards->size()}, buffer.options());
  impl_->shards->all_gather(bytes_of(buffer), bytes_of(whole), {"gather " + name, ""});
  return whole.narrow(0, t.offset, c10::multiply_integers(t.global_shape)).view(t.global_shape).clone();
}

std::map<std::string, at::Tensor> Step::state_dict() const {
  std::map<std::string, at::Tensor> values;
  for (const StoredTensor& t : program_->tensors()) values[t.name] = impl_->shaped(t);
  return values;
}

Chunk Step::range_of(const std::string& name) const { return impl_->range(find_tensor(*program_, name)); }

void Step::load_state_dict(const std::map<std::string, at::Tensor>& values) {
  impl_->refreshed.clear();
  for (const auto& [name, value] : values) {
    const StoredTensor& t = find_tensor(*program_, name);
    at::Tensor mine = impl_->shaped(t);
    if (value.sizes() == at::IntArrayRef(t.global_shape)) {
      const Chunk range = impl_->range(t);
      impl_->local(t).copy_(value.reshape({-1}).narrow(0, range.offset, range.length));
    } else if (value.sizes() == mine.sizes()) {
      mine.copy_(value);
    } else {
      throw UserError(concat("load_state_dict: ", name, " has shape ", value.sizes(), "\n  expected the whole ",
                             at::IntArrayRef(t.global_shape), " or this rank's ", mine.sizes()));
    }
  }
}

}  // namespace sfsdp
