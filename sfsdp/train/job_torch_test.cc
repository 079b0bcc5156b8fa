// SPDX-License-Identifier: BSD-3-Clause
// Checkpoints of real steps: what one mesh saved, another loads, and training goes on.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <map>

#include "sfsdp/base/strings.h"
#include "sfsdp/models/loss.h"
#include "sfsdp/testing.h"
#include "sfsdp/testing/eager_torch.h"
#include "sfsdp/testing/memory_folder.h"
#include "sfsdp/testing/source_dir.h"
#include "sfsdp/testing/tiny_models_torch.h"
#include "sfsdp/train/checkpoint/checkpointer.h"
#include "sfsdp/train/job.h"

namespace sfsdp::train {
namespace job_torch_test {

using checkpoint::Checkpointer, checkpoint::CheckpointOptions;
using testing::kAdamW, testing::loss_of, testing::make_llama, testing::micro_batches_of;

// A mesh and how it stores; `search`: units by cost.
struct Layout {
  const char* name;
  int64_t replicas, shards;
  int64_t zero_stage = 3;
  ParameterLayout layout = ParameterLayout::Flat;
  bool search = false;
  int64_t ranks() const { return replicas * shards; }
};

const Layout kLayouts[] = {{"one rank", 1, 1},
                           {"DDP 2", 2, 1},
                           {"FSDP 2", 1, 2},
                           {"FSDP 3 search", 1, 3, 3, ParameterLayout::Flat, true},
                           {"FSDP 4 dim0", 1, 4, 3, ParameterLayout::Dim0},
                           {"ZeRO 1 on 4", 1, 4, 1},
                           {"ZeRO 2 on 3, dim0", 1, 3, 2, ParameterLayout::Dim0},
                           {"HSDP 2 x 4", 2, 4},
                           {"FSDP 8", 1, 8},
                           {"DDP 8", 8, 1}};

std::shared_ptr<Program> program_of(const Layout& layout) {
  DataParallelOptions options;
  options.zero_stage = layout.zero_stage;
  options.layout = layout.layout;
  CompileOptions compile;
  compile.max_norm = 0.5;
  compile.seed = 7;
  if (layout.search) {
    compile.tune.wrap = tune::Wrap::Search;
    compile.tune.machine = testing::source_dir() + "/machines/dgx_h100.toml";
  }
  std::vector<MeshAxis> axes = {{"dp_shard", layout.shards}};
  if (layout.replicas > 1) axes.insert(axes.begin(), {"dp_replicate", layout.replicas});
  return compile_program(meta_init(make_llama), loss_of, kAdamW, micro_batches_of(0, 0, layout.ranks(), 1)[0],
                         data_parallel(init_device_mesh(axes), options), compile);
}

checkpoint::CheckpointOptions options_of(const Layout& layout, const std::string& folder) {
  checkpoint::CheckpointOptions options;
  options.enable = true;
  options.folder = folder;
  options.interval = 3;
  options.total_steps = 1000;
  options.about.world_size = options.about.data_ranks = layout.ranks();
  return options;
}

struct Outcome {
  std::vector<double> losses;               // of the steps made
  std::map<std::string, at::Tensor> state;  // whole, at the end
  int64_t began_at = 0;
};

// Loads what is in the folder, trains up to `steps`, saves every third step. What rank 0 saw.
Outcome run(const Layout& layout, const std::string& folder, int64_t steps) {
  Outcome outcome;
  const auto program = program_of(layout);
  testing::run_ranks(static_cast<int>(layout.ranks()), [&](comm::CommWorld& world) {
    Step step(program, layout.ranks() == 1 ? nullptr : &world);
    Checkpointer checkpointer(
        options_of(layout, folder), &world, [&] { return checkpoint_pieces(step, world.rank()); },
        [](const std::string&) {});
    if (const auto loaded = checkpointer.load()) {
      step.load_state_dict({});
      step.step = loaded->run.step;
    }
    const int64_t began_at = step.step;
    std::vector<double> losses;
    for (int64_t k = step.step + 1; k <= steps; ++k) {
      losses.push_back(step(micro_batches_of(k, world.rank(), layout.ranks(), 1)).loss);
      checkpointer.after_step({.step = k});
    }
    checkpointer.finish();
    auto state = testing::gather_all(step);
    if (world.rank() == 0) outcome = {losses, std::move(state), began_at};
  });
  return outcome;
}

void check_same_state(const Outcome& got, const Outcome& expected) {
  CHECK(got.state.size() == expected.state.size());
  for (const auto& [name, value] : expected.state) {
    CAPTURE(name);
    REQUIRE(got.state.contains(name));
    CHECK(at::equal(got.state.at(name), value));
  }
}

// Moments and gradients too, without a float32 copy; the sums over ranks are float32.
TEST_CASE("training.dtype = bfloat16 equals an eager bfloat16 Llama 3, bit for bit on one rank") {
  JobConfig config;
  config.model_args = {{"dim", int64_t{32}},       {"n_layers", int64_t{2}},    {"n_heads", int64_t{4}},
                       {"n_kv_heads", int64_t{2}}, {"vocab_size", int64_t{40}}, {"multiple_of", int64_t{16}}};
  config.training.dtype = "bfloat16";
  config.training.seq_len = 8;
  config.training.max_norm = 0.5;
  config.exec.products = config.exec.attention = config.exec.rows = "aten";
  config.optimizer.lr = 0.01;
  const auto rows_of = [](int64_t step, int64_t rank, int64_t rows) {
    at::Generator random = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(step) + 1);
    const at::Tensor ids =
        at::randint(0, 40, {4, 9}, random, at::TensorOptions(at::kLong)).narrow(0, rank * rows, rows);
    return Batch{ids.narrow(1, 0, 8).contiguous(), ids.narrow(1, 1, 8).contiguous()};
  };
  std::map<std::string, at::Tensor> initial;
  std::vector<testing::Trained> got;
  for (const int64_t world : {1, 2}) {
    config.training.local_batch_size = 4 / world;
    const CompiledJob job = make_job(config, world);
    got.push_back(testing::train_on_ranks(
        job.program, 4, [&](int64_t step, int64_t rank) { return std::vector<Batch>{rows_of(step, rank, 4 / world)}; },
        [&](Step& step, int rank) {
          auto values = testing::gather_all(step);
          if (rank == 0) initial = std::move(values);
        }));
  }
  const auto eager = models::make_language_model({"llama3", "debugmodel", config.model_args});
  eager.module->to(at::kBFloat16);
  {
    at::NoGradGuard no_grad;
    for (auto& p : eager.module->named_parameters()) p.value().copy_(initial.at(p.key()));
  }
  const auto adamw = AdamW{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
  testing::EagerTrainer trainer(eager.module, adamw, 0.5);
  testing::Trained expected;
  for (int64_t k = 0; k < 4; ++k)
    expected.results.push_back(trainer.step([&] {
      const Batch batch = rows_of(k, 0, 4);
      return models::cross_entropy(eager.forward(batch[0], {}), batch[1]);
    }));
  for (const auto& [name, value] : trainer.state()) {
    CAPTURE(name);
    CHECK((value.scalar_type() == at::kBFloat16));
    CHECK(at::equal(got[0].state.at(name), value));
    const double error = (got[1].state.at(name).to(at::kFloat) - value.to(at::kFloat)).abs().max().item<double>();
    CHECK(error <= 0.04);  // four steps of at most lr, each of either sign
  }
  for (size_t k = 0; k < 4; ++k) {
    CHECK(got[0].results[k].loss == expected.results[k].loss);
    CHECK(got[1].results[k].loss == doctest::Approx(expected.results[k].loss).epsilon(0x1p-7));
  }
}

TEST_CASE("what any mesh and layout saved, any other loads: parameters, moments and counters, bit for bit") {
  for (const Layout& from : kLayouts) {
    const testing::MemoryFolder folder;
    const Outcome saved = run(from, folder.path(), 3);
    CHECK(saved.state.contains("optimizer.step"));
    for (const Layout& to : kLayouts) {
      CAPTURE(std::string(from.name));
      CAPTURE(std::string(to.name));
      const Outcome loaded = run(to, folder.path(), 0);
      CHECK(loaded.began_at == 3);
      check_same_state(loaded, saved);
    }
  }
}

TEST_CASE("a run that goes on has the losses of one that was not stopped: its own on its mesh, nearly on another") {
  const Outcome one = run(kLayouts[0], testing::MemoryFolder().path(), 6);
  for (const Layout& layout : kLayouts) {
    CAPTURE(std::string(layout.name));
    const testing::MemoryFolder folder, other;
    const Outcome whole = run(layout, other.path(), 6);
    run(layout, folder.path(), 4);
    const Outcome rest = run(layout, folder.path(), 6);
    CHECK(rest.began_at == 3);
    CHECK(rest.losses == std::vector<double>(whole.losses.begin() + 3, whole.losses.end()));
    check_same_state(rest, whole);
    const testing::MemoryFolder moved;
    run(layout, moved.path(), 3);
    const Outcome elsewhere = run(kLayouts[4], moved.path(), 6);
    for (size_t i = 0; i < 3; ++i) CHECK(elsewhere.losses[i] == doctest::Approx(one.losses[3 + i]).epsilon(1e-5));
  }
}

struct NormalisedImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return norm(in(x)).square().mean(); }
  torch::nn::Linear in = register_module("in", torch::nn::Linear(3, 5));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(5));
};
TORCH_MODULE(Normalised);

// The running means of all data ranks after training on `ranks`, or after loading there what is in the folder.
std::vector<at::Tensor> running_means(int64_t ranks, const std::string& folder, int64_t steps) {
  std::vector<at::Tensor> means(static_cast<size_t>(ranks));
  const auto batch = [](int64_t rank) -> Batch {
    return {at::arange(12.0f).view({4, 3}).mul(0.1f * (rank + 1)).sin()};
  };
  const auto program = compile_program(
      meta_init([] { return Normalised(); }), [](Normalised& m, const Batch& b) { return m->forward(b[0]); }, kAdamW,
      batch(0), data_parallel(init_device_mesh({{"dp_shard", ranks}})));
  testing::run_ranks(static_cast<int>(ranks), [&](comm::CommWorld& world) {
    Step step(program, ranks == 1 ? nullptr : &world);
    const Layout layout{"", 1, ranks};
    Checkpointer checkpointer(
        options_of(layout, folder), &world, [&] { return checkpoint_pieces(step, world.rank()); },
        [](const std::string&) {});
    checkpointer.load();
    for (int64_t k = 1; k <= steps; ++k) step(batch(world.rank()));
    if (steps > 0) checkpointer.save({.step = steps}, Checkpointer::When::Now);
    means[static_cast<size_t>(world.rank())] = step.state_dict().at("norm.running_mean").clone();
  });
  return means;
}

TEST_CASE("running statistics are each data rank's own; rank r of another number takes those of r modulo the saved") {
  const testing::MemoryFolder folder;
  const auto saved = running_means(3, folder.path(), 2);
  CHECK_FALSE(at::equal(saved[0], saved[1]));
  for (int64_t ranks : {1, 2, 3, 4}) {
    const auto loaded = running_means(ranks, folder.path(), 0);
    for (int64_t r = 0; r < ranks; ++r)
      CHECK(at::equal(loaded[static_cast<size_t>(r)], saved[static_cast<size_t>(r % 3)]));
  }
}

struct DroppedImpl : torch::nn::Module {
  explicit DroppedImpl(double p) : drop(register_module("drop", torch::nn::Dropout(p))) {}
  at::Tensor forward(const at::Tensor& x) { return drop(out(drop(in(x).relu()))).square().mean(); }
  torch::nn::Linear in = register_module("in", torch::nn::Linear(4, 16));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(16, 8));
  torch::nn::Dropout drop;
};
TORCH_MODULE(Dropped);

// Losses of rank 0 from what is in the folder to step `steps`, on two ranks; the same batch in every step.
std::vector<double> losses_with_dropout(double p, const std::string& folder, int64_t steps, int64_t* began_at) {
  constexpr int64_t kRanks = 2;
  const auto batch = [](int64_t rank) -> Batch { return {at::arange(24.0f).view({6, 4}).add(3.0f * rank).sin()}; };
  CompileOptions compile;
  compile.seed = 7;
  const auto program = compile_program(
      meta_init([&] { return Dropped(p); }), [](Dropped& m, const Batch& b) { return m->forward(b[0]); }, kAdamW,
      batch(0), data_parallel(init_device_mesh({{"dp_shard", kRanks}})), compile);
  std::vector<double> losses;
  testing::run_ranks(kRanks, [&](comm::CommWorld& world) {
    Step step(program, &world);
    CheckpointOptions options = options_of({"", 1, kRanks}, folder);
    options.seed = 7;
    Checkpointer checkpointer(
        options, &world, [&] { return checkpoint_pieces(step, world.rank()); }, [](const std::string&) {});
    if (const auto loaded = checkpointer.load()) {
      step.load_state_dict({});
      step.step = loaded->run.step;
    }
    if (world.rank() == 0) *began_at = step.step;
    for (int64_t k = step.step + 1; k <= steps; ++k) {
      const double loss = step(batch(world.rank())).loss;
      if (world.rank() == 0) losses.push_back(loss);
      checkpointer.after_step({.step = k, .seed = 7});
    }
    checkpointer.finish();
  });
  return losses;
}

TEST_CASE("random ops go on after a save where they stopped: with dropout the losses are those of a run not stopped") {
  const testing::MemoryFolder folder, other, none;
  int64_t began_at = 0;
  const std::vector<double> whole = losses_with_dropout(0.5, other.path(), 7, &began_at);
  CHECK(losses_with_dropout(0.5, folder.path(), 4, &began_at) == std::vector<double>(whole.begin(), whole.begin() + 4));
  const std::vector<double> rest = losses_with_dropout(0.5, folder.path(), 7, &began_at);
  CHECK(began_at == 3);
  CHECK(rest == std::vector<double>(whole.begin() + 3, whole.end()));
  CHECK(losses_with_dropout(0, none.path(), 1, &began_at)[0] != whole[0]);  // it does drop
}

}  // namespace job_torch_test
}  // namespace sfsdp::train
