// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/step/step.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ranges>
#include <set>
#include <span>
#include <utility>

#include "sfsdp/base/error.h"
#include "sfsdp/base/hash.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/comm/same_texts.h"
#include "sfsdp/exec/planned/planned_executor.h"
#include "sfsdp/exec/random_ops.h"
#include "sfsdp/exec/reference/reference_executor.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/optim/own_loss.h"
#include "sfsdp/plan/cuts.h"
#include "sfsdp/step/constants.h"
#include "sfsdp/step/initialise.h"

namespace sfsdp {
namespace {

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
  for (const std::string& axis : strategy.model_axes()) add({axis});
  const auto joined = [](AxisList all, const AxisList& more) {
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const auto once = [&](const AxisList& all) {
    if (!all.empty() && !groups.contains(exec::axis_key(ir::Attr(all)))) add(all);
  };
  // Parameters are gathered over all that shards them. Sums of squares, and gradients of what a model axis leaves whole, are added
  // over these together.
  for (const AxisList& all : {strategy.shard_axes(), strategy.expert_shard_axes(), strategy.replicate_axes(),
                              joined(data, strategy.token_axes())}) {
    once(all);
    if (!all.empty()) once(joined(all, strategy.tensor_axes()));
  }
  return groups;
}

std::string meaning_of_difference(const std::string& ours, const std::string& theirs) {
  const std::string met = ir::compare_collectives(plan::parse_plan(ours).graph, plan::parse_plan(theirs).graph);
  return met.empty() ? "their collectives are the same" : "they would not meet: " + met;
}

constexpr const char* kSameProgram = "expected the same model, batch shapes, options and passes on all ranks";

// What a variant runs, and on what.
std::vector<comm::RankText> texts_of(const Program::Variant& variant) {
  return {
      {"programs", step::print_without_bits(variant.plan), kSameProgram, meaning_of_difference},
      {"constants", step::describe_constants(variant.plan),
       "expected the same on all ranks: they are no parameters, buffers or parts of the batch, but drawn by the model"
       " itself, say; make them buffers, or call torch::manual_seed before the module is made"}};
}

// A line for each parameter and buffer: what the module came with.
std::string initial_values(const Program& program) {
  std::string text;
  for (const capture::StateTensor& s : program.state()) {
    text += concat(s.name, " ", ir::Type::tensor(capture::dtype_of(s.dtype), s.shape));
    if (!s.value.defined())
      text += " without values\n";
    else
      text +=
          concat(" of bits ",
                 hex(xxh3(std::span(static_cast<const std::byte*>(s.value.const_data_ptr()), s.value.nbytes()))), "\n");
  }
  return text;
}

// A pass list can differ and leave the same graph, until a batch of another shape is compiled.
//   shared: by all ranks, which then start from the same values
void check_same_program(const Program& program, comm::CommWorld& world, bool shared) {
  const Held<const Program::Variant> first = program.first();
  std::vector<comm::RankText> texts = {
      {"options", concat("CompileOptions::seed = ", program.options().seed), kSameProgram},
      {"passes", program.pass_list(), kSameProgram},
      {"storage layouts", plan::print(program.storage_layout()), kSameProgram}};
  for (comm::RankText& text : texts_of(*first)) texts.push_back(std::move(text));
  texts.push_back({"initial values", shared ? "" : initial_values(program),
                   "expected the same on all ranks: torch::manual_seed before the module is made, or a module built by"
                   " sfsdp::meta_init, whose Step takes others by load_state_dict"});
  comm::expect_same_texts(world, texts);
}

// How many ranks share the program of this one: threads of a process.
int64_t count_sharing(uint64_t program_id, comm::CommWorld& world) {
  return std::ranges::count(comm::gather_numbers(world, {program_id}, "program id"), program_id);
}

void check_values(const Batch& batch) {
  for (size_t i = 0; i < batch.size(); ++i) {
    const at::Tensor& t = batch[i];
    const char* wrong = !t.defined()                 ? "undefined"
                        : t.layout() != at::kStrided ? "sparse"
                        : t.is_meta()                ? "a meta tensor"
                                                     : nullptr;
    if (wrong) throw UserError(concat("step: batch.", i, " is ", wrong, "\n  expected a dense tensor with values"));
  }
}

// All run through the graph of the first.
void check_micro_batches(const std::vector<Batch>& micro_batches, int64_t expected) {
  if (static_cast<int64_t>(micro_batches.size()) != expected)
    throw UserError(concat("step: got ", micro_batches.size(),
                           " micro-batches\n  expected CompileOptions::micro_batches = ", expected, ", as compiled"));
  for (const Batch& batch : micro_batches) check_values(batch);
  const std::string first = capture::shape_key(micro_batches[0]);
  for (size_t i = 1; i < micro_batches.size(); ++i)
    if (const std::string key = capture::shape_key(micro_batches[i]); key != first)
      throw UserError(concat("step: micro-batch ", i, " has other shapes than micro-batch 0\n  expected ", first,
                             ", got ", key, "; make all micro-batches of a step alike: pad the last, or leave it out"));
}

}  // namespace

struct Step::Impl {
  comm::CommWorld* world = nullptr;  // null: one rank
  exec::Groups groups;
  exec::DataPosition position;
  DeviceMesh mesh;
  int64_t rank = 0;
  std::map<std::string, at::Tensor, std::less<>> state;  // this rank's buffers, with padding
  std::shared_ptr<exec::RankMemory> memory;              // of the plans, if they are run
  struct Running {
    Held<const Program::Variant> variant;
    std::shared_ptr<exec::Executor> executor;
    step::OwnLoss own_loss;
    std::vector<step::MixtureEnds> mixtures;
  };
  std::map<const Program::Variant*, Running> executors;  // of what the program keeps
  double agree_seconds = 0;  // that the last agree() took to compare what ranks are about to run

  // The place of this rank's part in the whole buffer.
  int64_t begin_of(const StoredTensor& t) const {
    return t.sharded ? mesh.group_rank(rank, t.shard_axes) * t.shard : 0;
  }
  // What of the tensor this rank holds: all that lies in the box that model axes leave it, or a range of that, which may be empty.
  plan::Box box(const StoredTensor& t) const {
    plan::Box box = plan::box_of(t.boxed_shape(), t.cuts, mesh, rank);
    box.block_shape = t.block_shape;
    const int64_t numel = box.flat.length, begin = begin_of(t) - t.offset;
    box.flat.offset = std::clamp(begin, int64_t{0}, numel);
    box.flat.length = std::clamp(begin + t.shard, int64_t{0}, numel) - box.flat.offset;
    return box;
  }
  Chunk range(const StoredTensor& t) const { return box(t).flat; }
  std::vector<int64_t> box_shape(const StoredTensor& t) const {
    std::vector<int64_t> shape;
    for (const Chunk& chunk : box(t).dims) shape.push_back(chunk.length);
    return shape;
  }
  // The same with a rank's parts of all blocks side by side, in as many dimensions as the whole has.
  std::vector<int64_t> own_shape(const StoredTensor& t) const {
    std::vector<int64_t> shape = box_shape(t);
    for (size_t d = 0; d < t.global_shape.size() && shape.size() > t.global_shape.size(); ++d)
      if (t.global_shape[d] != t.block_shape[d]) {
        shape[d + 1] *= shape[d];
        shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(d));
      }
    return shape;
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
    const std::vector<int64_t> shape = own_shape(t);
    const int64_t numel = c10::multiply_integers(shape);
    if (mine.length == numel) return local(t).view(shape);
    if (t.global_shape.empty() || t.in_bucket) return local(t);
    std::vector<int64_t> rows = t.global_shape;
    rows[0] = rows[0] == 0 ? 0 : mine.length / (numel / rows[0]);
    return local(t).view(rows);
  }
  // What this rank is about to run, when all ranks have found the same, with the same learning rate and number of steps, and ranks that
  // differ along model axes alone the same samples: a collective call. A rank whose `find` throws takes the others along, as they would
  // wait for it.
  Held<const Program::Variant> agree(const Step& step, const std::vector<Batch>& batches,
                                     const std::function<Held<const Program::Variant>()>& find) {
    if (!world) return find();
    const bool shares_samples = position.size < mesh.world_size();
    const comm::RankNumber numbers[] = {{"Step::lr", step.lr},
                                        {"Step::step", step.step},
                                        {"samples, by their hash", shares_samples ? hash_of(batches) : 0, position.rank,
                                         "expected one batch on all ranks that differ along tp, cp and ep alone: read "
                                         "or draw samples by the place along data axes, such "
                                         "as mesh.axis_rank(world->rank(), \"dp_shard\"), not by the rank"}};
    Held<const Program::Variant> variant;
    try {
      variant = find();
    } catch (const std::exception& error) {
      try {
        comm::expect_same_hash(*world, 0, {}, numbers, error.what());
      } catch (const std::exception&) {  // what the others throw; here the error itself says more
      }
      throw;
    }
    const auto begin = std::chrono::steady_clock::now();
    comm::expect_same_hash(
        *world, step.program().hash_of(*variant), [&] { return texts_of(*variant); }, numbers);
    agree_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return variant;
  }
  static int64_t hash_of(const std::vector<Batch>& batches) {
    std::vector<uint64_t> hashes;
    for (const Batch& batch : batches)
      for (const at::Tensor& tensor : batch)
        if (tensor.defined() && tensor.device().is_cpu()) {
          const at::Tensor dense = tensor.contiguous();
          hashes.push_back(
              xxh3({static_cast<const std::byte*>(dense.const_data_ptr()), static_cast<size_t>(dense.nbytes())}));
        }
    return static_cast<int64_t>(xxh3(std::as_bytes(std::span(hashes))));
  }
  // What backward draws again, ATen's generator would draw otherwise: the reference executor keeps it.
  static bool runs_plans(const CompileOptions& options) {
    return options.executor == ExecutorKind::Planned && options.rng == exec::Rng::Counter;
  }
  Running& running(const Held<const Program::Variant>& variant, const CompileOptions& options) {
    if (const auto found = executors.find(variant.get()); found != executors.end()) return found->second;
    std::erase_if(executors, [](const auto& entry) { return entry.second.variant->let_go.load(); });
    step::check_constants(variant->plan, variant->constants);
    Running made = {variant, nullptr, step::own_loss(variant->graph, position.size), step::mixtures_of(variant->graph)};
    std::vector<const ir::Value*> more = {made.own_loss.sum};
    if (made.own_loss.count) more.push_back(made.own_loss.count);
    for (const step::MixtureEnds& mixture : made.mixtures) more.push_back(mixture.ends);
    if (runs_plans(options))
      made.executor = std::make_shared<exec::PlannedExecutor>(variant->plan, variant->constants, groups, position,
                                                              world ? world->rank() : 0, options.rng, memory, more,
                                                              options.make_device);
    else
      made.executor = std::make_shared<exec::ReferenceExecutor>(variant->graph, variant->constants, groups, position,
                                                                options.rng, std::move(more));
    return executors.emplace(variant.get(), std::move(made)).first->second;
  }
  // What one rank alone finds out while it runs, such as an id that is no row, would leave the others in a collective.
  std::vector<at::Tensor> run(exec::Executor& executor, const std::vector<Batch>& batches,
                              const exec::StepScalars& scalars) {
    executor.state = std::move(state);  // no second holder: what the executor replaces goes at once
    try {
      auto outputs = executor.run(batches, scalars);
      state = std::move(executor.state);
      return outputs;
    } catch (const std::exception& error) {
      state = std::move(executor.state);
      if (world) world->abort(error.what());
      throw;
    }
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
    sharing = count_sharing(program_->id_, *world);
    check_same_program(*program_, *world, sharing == world->world_size());
  }
  impl_->memory = std::make_shared<exec::RankMemory>(impl_->world);
  const int64_t rank = world ? world->rank() : 0;
  impl_->mesh = strategy.mesh;
  impl_->rank = rank;
  impl_->position = {strategy.mesh.group_rank(rank, strategy.data_axes()), strategy.data_ranks()};
  make_state(sharing);
}

// Buffer after buffer, so that real weights go as shards come; the optimizer's are last.
void Step::make_state(int64_t sharing) {
  std::map<std::string, const ir::Type*> types;
  const Held<const Program::Variant> first = program_->first();
  if (impl_->runs_plans(program_->options()))
    impl_->state = exec::state_in_place(first->plan, impl_->world ? impl_->world->rank() : 0, impl_->memory);
  for (const auto& op : first->graph.ops())
    if (op->is("param", "state")) types[op->attr<std::string>("name")] = &op->result()->type();
  const auto make = [&](const std::string& buffer) {
    at::Tensor& tensor = impl_->state[buffer];
    const ir::Type& type = *types.at(buffer);
    if (!tensor.defined()) tensor = at::zeros(type.shape(), at::TensorOptions(capture::scalar_type_of(type.dtype)));
  };
  for (const StoredTensor& t : program_->tensors()) {
    if (t.source < 0) continue;
    make(t.buffer);
    const plan::Box mine = impl_->box(t);
    const at::Tensor values = program_->take_start(static_cast<size_t>(t.source), mine, sharing);
    if (mine.flat.length > 0) impl_->local(t).copy_(values);
  }
  for (const auto& [buffer, type] : types) make(buffer);
}
Step::~Step() = default;
Step::Step(Step&&) noexcept = default;

StepResult Step::operator()(const std::vector<Batch>& micro_batches) {
  const Held<const Program::Variant> variant = impl_->agree(*this, micro_batches, [&] {
    check_micro_batches(micro_batches, program_->options().micro_batches);
    if (!(lr >= 0) || std::isinf(lr))
      throw UserError(concat("step: Step::lr = ", lr, "\n  expected 0 or more, finite"));
    return program_->training(micro_batches[0]);
  });
  const auto& [held, executor, own_loss, mixtures] = impl_->running(variant, program_->options());
  const auto outputs =
      impl_->run(*executor, micro_batches, {.lr = lr, .step = step + 1, .seed = program_->options().seed});
  ++step;
  StepResult result = {outputs[0].item<double>(), outputs[1].item<double>(), outputs[2].item<float>() != 0.0f};
  result.own_loss = outputs[3].item<double>() * own_loss.factor;
  if (const double count = own_loss.count ? outputs[4].item<double>() : 0; count != 0) result.own_loss /= count;
  if (!mixtures.empty()) result.experts.emplace();
  for (size_t i = 0; i < mixtures.size(); ++i) {
    const at::Tensor ends = outputs[(own_loss.count ? 5 : 4) + i].contiguous();
    step::note_loads(*result.experts, mixtures[i], {ends.const_data_ptr<int32_t>(), static_cast<size_t>(ends.numel())});
  }
  result.seconds = executor->seconds();
  result.seconds.communication += impl_->agree_seconds;
  return result;
}

std::shared_ptr<exec::Executor> Step::executor(const Batch& example) {
  return impl_->running(program_->training(example), program_->options()).executor;
}

double Step::eval(const Batch& batch) {
  const Held<const Program::Variant> variant = impl_->agree(*this, {batch}, [&] {
    check_values(batch);
    return program_->evaluation(batch);
  });
  return impl_->run(*impl_->running(variant, program_->options()).executor, {batch}, {})[0].item<double>();
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
  const std::vector<int64_t> shape = impl_->box_shape(t);
  at::Tensor part = impl_->local(t);
  if (t.sharded) {
    const at::Tensor& buffer = impl_->state.at(t.buffer);
    comm::Communicator& shards = *impl_->groups.at(exec::axis_key(ir::Attr(t.shard_axes)));
    const at::Tensor whole = at::empty({t.shard * shards.size()}, buffer.options());
    shards.all_gather(bytes_of(buffer), bytes_of(whole), {"gather " + name, ""});
    part = whole.narrow(0, t.offset, c10::multiply_integers(shape));
  }
  part = part.view(shape).clone();
  for (size_t d = 0; d < t.cuts.size(); ++d)
    for (const std::string& axis : t.cuts[d].axes | std::views::reverse) {
      comm::Communicator& ranks = *impl_->groups.at(axis);
      const auto dim = static_cast<int64_t>(d);
      std::vector<int64_t> sizes = part.sizes().vec();
      const bool is_last = axis == t.cuts[d].axes.front();  // that is joined; its last ranks may have fewer
      if (is_last) sizes[d] = ceil_div(t.boxed_shape()[d], ranks.size());
      const at::Tensor own = at::zeros(sizes, part.options());
      own.narrow(dim, 0, part.size(dim)).copy_(part);
      sizes.insert(sizes.begin(), ranks.size());
      const at::Tensor parts = at::empty(sizes, part.options());
      ranks.all_gather(bytes_of(own), bytes_of(parts), {"gather " + name, ""});
      part = at::cat(parts.unbind(), dim);
      if (const int64_t size = t.boxed_shape()[d]; part.size(dim) > size) part = part.narrow(dim, 0, size).contiguous();
    }
  return part.view(t.global_shape);
}

std::map<std::string, at::Tensor> Step::state_dict() const {
  std::map<std::string, at::Tensor> values;
  for (const StoredTensor& t : program_->tensors()) values[t.name] = impl_->shaped(t);
  return values;
}

Chunk Step::range_of(const std::string& name) const {
  const StoredTensor& t = find_tensor(*program_, name);
  if (!t.cuts.empty())
    throw UserError(concat("range_of: ", t.name,
                           " is cut by a model axis: what a rank has of it is no range of elements",
                           "\n  expected a mesh of data axes alone here; Step::box_of says which elements there are"));
  return impl_->range(t);
}

plan::Box Step::box_of(const std::string& name) const { return impl_->box(find_tensor(*program_, name)); }

void Step::load_state_dict(const std::map<std::string, at::Tensor>& values) {
  for (const auto& [name, value] : values) {
    const StoredTensor& t = find_tensor(*program_, name);
    at::Tensor mine = impl_->shaped(t);
    if (value.defined() && (value.is_meta() || value.layout() != at::kStrided))
      throw UserError(concat("load_state_dict: ", name, " is ", value.is_meta() ? "a meta tensor" : "sparse",
                             "\n  expected a dense tensor with values"));
    if (!value.defined() || value.is_floating_point() != mine.is_floating_point() ||
        value.is_complex() != mine.is_complex())
      throw UserError(concat("load_state_dict: ", name, " is ",
                             value.defined() ? concat("of ", value.scalar_type()) : "undefined", "\n  expected ",
                             mine.scalar_type(), ", or a type of its kind, which is cast"));
    if (value.sizes() == at::IntArrayRef(t.global_shape)) {
      const plan::Box box = impl_->box(t);
      at::Tensor part = value.reshape(t.boxed_shape());
      for (size_t d = 0; d < box.dims.size(); ++d)
        part = part.narrow(static_cast<int64_t>(d), box.dims[d].offset, box.dims[d].length);
      impl_->local(t).copy_(part.reshape({-1}).narrow(0, box.flat.offset, box.flat.length));
    } else if (value.sizes() == mine.sizes()) {
      mine.copy_(value);
    } else {
      throw UserError(concat("load_state_dict: ", name, " has shape ", value.sizes(), "\n  expected the whole ",
                             at::IntArrayRef(t.global_shape), " or this rank's ", mine.sizes()));
    }
  }
}

}  // namespace sfsdp
