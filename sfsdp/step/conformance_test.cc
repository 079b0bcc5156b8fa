// SPDX-License-Identifier: BSD-3-Clause
// What FSDP2's own tests hold, beyond parity: see docs/conformance.md, which names these cases.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <thread>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/comm/init.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing.h"
#include "sfsdp/testing/eager_torch.h"

namespace sfsdp {
namespace conformance_test {

// One block used twice, input and output embedding tied, a frozen layer, an unused parameter, a scalar parameter and a
// weight that is not contiguous.
struct OddImpl : torch::nn::Module {
  OddImpl()
      : embedding(register_module("embedding", torch::nn::Embedding(11, 6))),
        block(register_module("block", torch::nn::Linear(6, 6))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})))),
        frozen(register_module("frozen", torch::nn::Linear(6, 6))),
        unused(register_parameter("unused", at::ones({3}))),
        scale(register_parameter("scale", at::full({}, 1.5))),
        turned(register_parameter("turned", at::linspace(-0.5, 0.5, 30).view({5, 6}).t())),
        output(register_parameter("output", embedding->weight)) {
    for (auto& p : frozen->parameters()) p.set_requires_grad(false);
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = embedding(ids);
    x = x + at::gelu(block(x));
    x = x + at::gelu(block(x)) * scale;
    x = x + at::matmul(at::matmul(x, turned), turned.t());
    return at::linear(norm(frozen(x)), output);
  }
  torch::nn::Embedding embedding;
  torch::nn::Linear block;
  torch::nn::LayerNorm norm;
  torch::nn::Linear frozen;
  at::Tensor unused, scale, turned, output;
};
TORCH_MODULE(Odd);

constexpr int64_t kRows = 24;
const AdamW kAdamW{.lr = 5e-3, .weight_decay = 0.1};

Batch ids(int64_t step, int64_t first, int64_t rows) {
  Batch batch = {at::empty({rows}, at::kLong), at::empty({rows}, at::kLong)};
  for (int64_t r = 0; r < rows; ++r) {
    batch[0].mutable_data_ptr<int64_t>()[r] = (3 * step + 5 * (first + r)) % 11;
    batch[1].mutable_data_ptr<int64_t>()[r] = (step + (first + r) * (first + r)) % 11;
  }
  return batch;
}

const auto odd_loss = [](Odd& m, const Batch& b) { return at::cross_entropy_loss(m->forward(b[0]), b[1]); };

constexpr ParameterLayout kDim0 = ParameterLayout::Dim0;
const std::vector<std::string> kSingle = {"copy_buckets", "reshard"};  // passes without which none serves several

std::shared_ptr<Program> odd_program(Odd model, DeviceMesh mesh, DataParallelOptions options = {},
                                     int64_t micro_batches = 1, const std::vector<std::string>& without = {}) {
  CompileOptions compile_options;
  compile_options.pipeline.disable = without;
  compile_options.max_norm = 1.0;
  compile_options.micro_batches = micro_batches;
  const int64_t rows = kRows / mesh.world_size() / micro_batches;
  return compile_program(model, odd_loss, kAdamW, ids(0, 0, rows), data_parallel(std::move(mesh), options),
                         compile_options);
}

using Counts = std::map<std::string, int64_t>;

// Collectives by name that one step of a rank runs.
Counts run_and_count(const std::shared_ptr<Program>& program, int64_t micro_batches = 1) {
  const auto ranks = static_cast<int>(program->strategy().mesh.world_size());
  const int64_t rows = kRows / ranks / micro_batches;
  Counts counts;
  testing::run_ranks(ranks, [&](comm::CommWorld& world) {
    Step step(program, &world);
    if (world.rank() == 0)
      step.executor(ids(0, 0, rows))->on_op = [&](const ir::Op& op, const std::vector<at::Tensor>&) {
        const std::string kind(ir::collective_kind(op));
        if (kind == "all_gather" || kind == "reduce_scatter" || kind == "all_reduce") ++counts[kind];
      };
    std::vector<Batch> batches;
    for (int64_t m = 0; m < micro_batches; ++m) batches.push_back(ids(0, (m * ranks + world.rank()) * rows, rows));
    step(batches);
  });
  return counts;
}

using testing::Trained;

Trained train(const std::shared_ptr<Program>& program, const std::function<void(Step&, int rank)>& prepare = {}) {
  const int64_t rows = kRows / program->strategy().mesh.world_size();
  const auto batches = [&](int64_t step, int64_t rank) { return std::vector<Batch>{ids(step, rank * rows, rows)}; };
  return testing::train_on_ranks(program, 5, batches, prepare);
}

TEST_CASE("flat shards cover each parameter and its moments once") {
  const auto program = odd_program(Odd(), init_device_mesh({{"dp_shard", 4}}));
  std::mutex mutex;
  std::map<std::string, int64_t> covered;
  testing::run_ranks(4, [&](comm::CommWorld& world) {
    Step step(program, &world);
    const auto state = step.state_dict();
    std::lock_guard lock(mutex);
    for (const StoredTensor& t : program->tensors()) {
      const Chunk mine = step.range_of(t.name);
      CHECK(state.at(t.name).numel() == mine.length);
      if (t.sharded || world.rank() == 0) covered[t.name] += mine.length;
    }
  });
  for (const StoredTensor& t : program->tensors()) CHECK(covered[t.name] == c10::multiply_integers(t.global_shape));
}

TEST_CASE("shared, frozen, unused, scalar and strided parameters equal eager on every mesh") {
  Odd eager;
  const auto copy = [&] {
    torch::manual_seed(5);
    return Odd();
  };
  eager = copy();
  testing::EagerTrainer trainer(eager.ptr(), kAdamW, 1.0);
  std::vector<StepResult> expected;
  for (int64_t k = 0; k < 5; ++k) expected.push_back(trainer.step([&] { return odd_loss(eager, ids(k, 0, kRows)); }));
  const auto state = trainer.state();
  const auto check = [&](DeviceMesh mesh, DataParallelMode mode, int64_t zero_stage = 3) {
    CAPTURE(to_string(mesh));
    CAPTURE(zero_stage);
    const Trained got = train(odd_program(copy(), mesh, {.mode = mode, .zero_stage = zero_stage}));
    for (size_t k = 0; k < expected.size(); ++k) {
      CHECK(got.results[k].loss == doctest::Approx(expected[k].loss).epsilon(1e-6));
      CHECK(got.results[k].grad_norm == doctest::Approx(expected[k].grad_norm).epsilon(5e-6));
    }
    for (const auto& [name, value] : state) {
      CAPTURE(name);
      CHECK((got.state.at(name) - value).abs().max().item<double>() <= 1e-5);
    }
    CHECK(got.state.contains("output"));  // tied: stored once, under its first name
    CHECK_FALSE(got.state.contains("embedding.weight"));
    CHECK_FALSE(got.state.contains("unused.exp_avg"));  // no gradient, no moments
    CHECK_FALSE(got.state.contains("frozen.weight.exp_avg"));
    CHECK(at::equal(got.state.at("unused"), at::ones({3})));
  };
  for (int64_t world : {2, 3, 4, 8}) check(init_device_mesh({{"dp_shard", world}}), DataParallelMode::FullyShard);
  for (int64_t zero_stage : {0, 1, 2}) {
    check(init_device_mesh({{"dp_shard", 3}}), DataParallelMode::FullyShard, zero_stage);
    check(init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}}), DataParallelMode::HybridShard, zero_stage);
  }
  check(init_device_mesh({{"dp_replicate", 3}}), DataParallelMode::Replicate);
  check(init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}}), DataParallelMode::HybridShard);
}

TEST_CASE("collectives run as often as the rules say, with frozen, unused and shared parameters and micro-batches") {
  // layout Dim0, no buckets: one per parameter.
  // Sharded: embedding, block.weight, block.bias, norm.weight, norm.bias, frozen.weight, frozen.bias, turned. Backward
  // reads block.weight, norm.weight and norm.bias (LayerNorm's kernel takes both), frozen.weight, turned, and the
  // embedding as output weight. The scalar is replicated; the unused parameter moves nothing.
  const auto fsdp = [](int64_t world, DataParallelOptions options = {}, int64_t micro_batches = 1) {
    options.layout = kDim0;
    return run_and_count(odd_program(Odd(), init_device_mesh({{"dp_shard", world}}), options, micro_batches, kSingle),
                         micro_batches);
  };
  // all_reduce: loss, norm, the scalar's gradient.
  CHECK(fsdp(2) == Counts{{"all_gather", 8 + 6}, {"reduce_scatter", 6}, {"all_reduce", 3}});
  CHECK(fsdp(4) == fsdp(2));
  CHECK(fsdp(2, {.reshard_after_forward = false}) ==
        Counts{{"all_gather", 8}, {"reduce_scatter", 6}, {"all_reduce", 3}});
  CHECK(fsdp(2, {}, 3) == Counts{{"all_gather", 3 * 14}, {"reduce_scatter", 3 * 6}, {"all_reduce", 3}});
  // Added up whole, reduced by the last micro-batch.
  CHECK(fsdp(2, {.reduce_once = true}, 3) == Counts{{"all_gather", 3 * 14}, {"reduce_scatter", 6}, {"all_reduce", 3}});
  CHECK(fsdp(2, {.reduce_once = true}) == fsdp(2));
  CHECK(fsdp(1).empty());
  // HSDP: the replicas' all-reduce of each shard once a step, whatever the micro-batches.
  const auto hsdp = [](int64_t micro_batches) {
    return run_and_count(odd_program(Odd(), init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}}),
                                     {.mode = DataParallelMode::HybridShard, .layout = kDim0}, micro_batches, kSingle),
                         micro_batches);
  };
  CHECK(hsdp(1) == Counts{{"all_gather", 14}, {"reduce_scatter", 6}, {"all_reduce", 6 + 3}});
  CHECK(hsdp(3) == Counts{{"all_gather", 3 * 14}, {"reduce_scatter", 3 * 6}, {"all_reduce", 6 + 3}});
  // DDP: one per trained parameter and the loss; the norm needs none.
  CHECK(run_and_count(odd_program(Odd(), init_device_mesh({{"dp_replicate", 2}}),
                                  {.mode = DataParallelMode::Replicate, .layout = kDim0}, 1, kSingle)) ==
        Counts{{"all_reduce", 7 + 1}});
}

TEST_CASE("collectives per ZeRO stage, micro-batches and layout") {
  const auto counts = [](int64_t zero_stage, int64_t micro_batches, ParameterLayout layout, bool hybrid = false) {
    const DeviceMesh mesh =
        hybrid ? init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}}) : init_device_mesh({{"dp_shard", 2}});
    return run_and_count(odd_program(Odd(), mesh,
                                     {.mode = hybrid ? DataParallelMode::HybridShard : DataParallelMode::FullyShard,
                                      .zero_stage = zero_stage,
                                      .layout = layout,
                                      .units = "[output, turned, scale, unused], [block, norm], frozen"},
                                     micro_batches),
                         micro_batches);
  };
  for (const int64_t k : {1, 3}) {
    CAPTURE(k);
    // 0: an all_reduce per unit with trained parameters, and the loss. 1: each unit's gradients reduced once per step, its
    // parameters gathered once; not the frozen ones, which are whole. 2: reduced in each micro-batch.
    CHECK(counts(0, k, kDim0) == Counts{{"all_reduce", 2 + 1}});
    CHECK(counts(1, k, kDim0) == Counts{{"all_gather", 2}, {"reduce_scatter", 2}, {"all_reduce", 3}});
    CHECK(counts(2, k, kDim0) == Counts{{"all_gather", 2}, {"reduce_scatter", k * 2}, {"all_reduce", 3}});
    CHECK(counts(3, k, kDim0) == Counts{{"all_gather", k * (3 + 2)}, {"reduce_scatter", k * 2}, {"all_reduce", 3}});
    CHECK(counts(3, k, ParameterLayout::Flat) == counts(3, k, kDim0));
    CHECK(counts(1, k, ParameterLayout::Flat) == Counts{{"all_gather", 2}, {"reduce_scatter", 2}, {"all_reduce", 3}});
    CHECK(counts(2, k, ParameterLayout::Flat) ==
          Counts{{"all_gather", 2}, {"reduce_scatter", k * 2}, {"all_reduce", 3}});
    CHECK(counts(1, k, kDim0, true) == Counts{{"all_gather", 2}, {"reduce_scatter", 2}, {"all_reduce", 2 + 3}});
    CHECK(counts(2, k, kDim0, true) == Counts{{"all_gather", 2}, {"reduce_scatter", k * 2}, {"all_reduce", 2 + 3}});
    CHECK(counts(3, k, kDim0, true) == Counts{{"all_gather", k * 5}, {"reduce_scatter", k * 2}, {"all_reduce", 2 + 3}});
  }
}

TEST_CASE("with flat units a collective serves a unit") {
  // Units: root (output, unused, turned | scale), embedding's is output's; block, norm, frozen.
  const auto counts = [](DeviceMesh mesh, DataParallelOptions options, int64_t micro_batches = 1) {
    options.units = "[output, turned, scale, unused], [block, norm], frozen";
    return run_and_count(odd_program(Odd(), std::move(mesh), options, micro_batches), micro_batches);
  };
  const DeviceMesh two = init_device_mesh({{"dp_shard", 2}});
  CHECK(counts(two, {}) == Counts{{"all_gather", 3 + 2}, {"reduce_scatter", 2}, {"all_reduce", 3}});
  CHECK(counts(two, {.reshard_after_forward = false}) ==
        Counts{{"all_gather", 3}, {"reduce_scatter", 2}, {"all_reduce", 3}});
  CHECK(counts(two, {}, 3) == Counts{{"all_gather", 3 * 5}, {"reduce_scatter", 3 * 2}, {"all_reduce", 3}});
  CHECK(counts(init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}}), {.mode = DataParallelMode::HybridShard}) ==
        Counts{{"all_gather", 5}, {"reduce_scatter", 2}, {"all_reduce", 2 + 3}});
  CHECK(counts(init_device_mesh({{"dp_replicate", 2}}), {.mode = DataParallelMode::Replicate}) ==
        Counts{{"all_reduce", 2 + 1}});
}

TEST_CASE("delays on some ranks change nothing, bit for bit") {
  const auto make = [] {
    torch::manual_seed(5);
    return odd_program(Odd(), init_device_mesh({{"dp_shard", 3}}));
  };
  const Trained calm = train(make());
  const Trained delayed = train(make(), [](Step& step, int rank) {
    int64_t count = 0;
    step.executor(ids(0, 0, kRows / 3))->on_op = [=](const ir::Op&, const std::vector<at::Tensor>&) mutable {
      if ((++count * (rank + 2)) % 41 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2 + rank));
    };
  });
  for (size_t k = 0; k < calm.results.size(); ++k) CHECK(calm.results[k].loss == delayed.results[k].loss);
  for (const auto& [name, value] : calm.state) {
    CAPTURE(name);
    CHECK(at::equal(value, delayed.state.at(name)));
  }
}

// With other ranks, who are in the middle of it too, the world is at an end (variants_test.cc).
TEST_CASE("a step that throws leaves the state as it was; on one rank, the next one works") {
  const auto make = [] {
    torch::manual_seed(5);
    return odd_program(Odd(), init_device_mesh({{"dp_shard", 1}}));
  };
  const Trained expected = train(make());
  const Trained got = train(make(), [](Step& step, int rank) {
    Batch bad = ids(0, rank * kRows, kRows);
    bad[0].fill_(99);  // no such row of the embedding
    CHECK_THROWS(step(bad));
    CHECK(step.step == 0);
  });
  for (size_t k = 0; k < expected.results.size(); ++k) CHECK(got.results[k].loss == expected.results[k].loss);
  for (const auto& [name, value] : expected.state) CHECK(at::equal(value, got.state.at(name)));
}

TEST_CASE("a rank stores its chunk of each parameter and its moments, and nothing else") {
  const auto program = odd_program(Odd(), init_device_mesh({{"dp_shard", 4}}), {.layout = kDim0});
  testing::run_ranks(4, [&](comm::CommWorld& world) {
    Step step(program, &world);
    const auto state = step.state_dict();
    for (const StoredTensor& t : program->tensors()) {
      std::vector<int64_t> expected = t.global_shape;
      if (t.sharded) expected[0] = chunk_of(expected[0], 4, world.rank()).length;
      CHECK(state.at(t.name).sizes() == at::IntArrayRef(expected));
    }
    CHECK(state.at("unused").numel() == (world.rank() < 3 ? 1 : 0));  // an empty shard
    CHECK(state.at("scale").numel() == 1);                            // a scalar cannot be cut
  });
}

struct OnMetaImpl : torch::nn::Module {
  OnMetaImpl() : weight(register_parameter("weight", at::empty({4}, at::TensorOptions().device(at::kMeta)))) {}
  at::Tensor forward(const at::Tensor& x) { return x * weight; }
  at::Tensor weight;
};
TORCH_MODULE(OnMeta);

TEST_CASE("a parameter left on meta is named") {
  const auto loss = [](OnMeta& m, const Batch& b) { return m->forward(b[0]).sum(); };
  CHECK_THROWS_WITH_AS(
      compile(OnMeta(), loss, kAdamW, {at::ones({2, 4})}, data_parallel(init_device_mesh({{"dp_shard", 1}}))),
      doctest::Contains("parameter weight is a meta tensor"), UserError);
}

TEST_CASE("the clipped norm is the norm of the whole gradient, clipped once, on every mesh") {
  const auto norms = [&](DeviceMesh mesh, DataParallelMode mode, double max_norm) {
    torch::manual_seed(5);
    CompileOptions options;
    options.max_norm = max_norm;
    const int64_t rows = kRows / mesh.world_size();
    // With beta1 = 0 the first moment is the clipped gradient.
    auto program = compile_program(Odd(), odd_loss, AdamW{.beta1 = 0}, ids(0, 0, rows),
                                   data_parallel(mesh, {.mode = mode}), options);
    const Trained trained = train(program);
    std::pair<double, double> got = {trained.results.back().grad_norm, 0};
    for (const auto& [name, value] : trained.state)
      if (name.ends_with(".exp_avg")) got.second += value.square().sum().item<double>();
    got.second = std::sqrt(got.second);
    return got;
  };
  for (const double max_norm : {0.0, 0.05, 1e6}) {
    CAPTURE(max_norm);
    const auto [norm, clipped] = norms(init_device_mesh({{"dp_shard", 1}}), DataParallelMode::FullyShard, max_norm);
    CHECK(clipped == doctest::Approx(max_norm == 0.05 ? 0.05 : norm).epsilon(1e-4));
    const auto same = [&, norm = norm, clipped = clipped](DeviceMesh mesh, DataParallelMode mode) {
      const auto got = norms(std::move(mesh), mode, max_norm);
      CHECK(got.first == doctest::Approx(norm).epsilon(1e-5));
      CHECK(got.second == doctest::Approx(clipped).epsilon(1e-5));
    };
    same(init_device_mesh({{"dp_shard", 3}}), DataParallelMode::FullyShard);
    same(init_device_mesh({{"dp_replicate", 2}}), DataParallelMode::Replicate);
    same(init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 4}}), DataParallelMode::HybridShard);
  }
}

TEST_CASE("a gradient that is not finite skips the update, on all ranks alike") {
  torch::manual_seed(5);
  const auto loss = [](Odd& m, const Batch& b) {  // the second batch tensor makes it infinite on one rank
    return at::cross_entropy_loss(m->forward(b[0]), b[1]) * b[2].mean();
  };
  const auto batch = [](int64_t k, int rank, float factor) {
    Batch b = ids(k, rank * 12, 12);
    b.push_back(at::full({12}, factor));
    return b;
  };
  auto program =
      compile_program(Odd(), loss, kAdamW, batch(0, 0, 1), data_parallel(init_device_mesh({{"dp_shard", 2}})));
  testing::run_ranks(2, [&](comm::CommWorld& world) {
    Step step(program, &world);
    CHECK_FALSE(step(batch(0, world.rank(), 1.0f)).skipped);
    std::map<std::string, at::Tensor> before;
    for (const auto& [name, value] : step.state_dict()) before[name] = value.clone();
    CHECK(step(batch(1, world.rank(), world.rank() == 1 ? INFINITY : 1.0f)).skipped);
    for (const auto& [name, value] : step.state_dict()) CHECK(at::equal(value, before.at(name)));
    CHECK_FALSE(step(batch(2, world.rank(), 1.0f)).skipped);
  });
}

struct Storage {
  DeviceMesh mesh;
  DataParallelOptions options = {};
  int64_t micro_batches = 1;
};

// Layouts, ZeRO stages, DDP, FSDP and HSDP, micro-batches and both ways to reduce them.
std::vector<Storage> storages(const std::string& units) {
  const DeviceMesh one = init_device_mesh({{"dp_shard", 1}}), two = init_device_mesh({{"dp_shard", 2}}),
                   three = init_device_mesh({{"dp_shard", 3}}), replicas = init_device_mesh({{"dp_replicate", 2}}),
                   hybrid = init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}});
  std::vector<Storage> all;
  for (const ParameterLayout layout : {ParameterLayout::Flat, kDim0}) {
    all.push_back({one, {.layout = layout, .units = units}, 2});
    all.push_back({one, {.layout = layout, .units = units}});
    all.push_back({replicas, {.mode = DataParallelMode::Replicate, .layout = layout, .units = units}, 2});
    for (const int64_t zero_stage : {0, 1, 2, 3}) {
      all.push_back({three, {.zero_stage = zero_stage, .layout = layout, .units = units}});
      all.push_back({two, {.zero_stage = zero_stage, .reduce_once = true, .layout = layout, .units = units}, 3});
    }
    all.push_back({two, {.layout = layout, .units = units}, 3});
    all.push_back({two, {.min_shard_numel = 7, .layout = layout, .units = units}, 2});
    all.push_back({hybrid, {.mode = DataParallelMode::HybridShard, .layout = layout, .units = units}, 2});
  }
  return all;
}

void expect_close(const Trained& got, const Trained& expected) {
  for (size_t k = 0; k < expected.results.size(); ++k) {
    CHECK(got.results[k].loss == doctest::Approx(expected.results[k].loss).epsilon(1e-6));
    CHECK(got.results[k].grad_norm == doctest::Approx(expected.results[k].grad_norm).epsilon(5e-6));
  }
  for (const auto& [name, value] : expected.state) {
    CAPTURE(name);
    CHECK((got.state.at(name) - value).abs().max().item<double>() <= 1e-5);
  }
}

// Five steps of the module that `make` makes, in every storage, end where eager's do.
//   batch: of a step, first row and rows, a share of kRows
template <class Make, class Loss, class MakeBatch>
void expect_equal_to_eager(Make make, Loss loss, MakeBatch batch, const std::vector<std::string>& units) {
  const auto copy = [&] {
    torch::manual_seed(5);
    return make();
  };
  auto eager = copy();
  testing::EagerTrainer trainer(eager.ptr(), kAdamW, 1.0);
  Trained expected;
  for (int64_t k = 0; k < 5; ++k)
    expected.results.push_back(trainer.step([&] { return loss(eager, batch(k, 0, kRows)); }));
  expected.state = trainer.state();
  for (const std::string& unit : units)
    for (const Storage& storage : storages(unit)) {
      const int64_t ranks = storage.mesh.world_size(), rows = kRows / ranks / storage.micro_batches;
      CAPTURE(to_string(storage.mesh));
      CAPTURE(unit);
      CAPTURE(storage.options.zero_stage);
      CAPTURE(storage.options.reduce_once);
      CAPTURE(storage.micro_batches);
      CAPTURE(static_cast<int>(storage.options.layout));
      CompileOptions options;
      options.max_norm = 1.0;
      options.micro_batches = storage.micro_batches;
      const auto program = compile_program(copy(), loss, kAdamW, batch(0, 0, rows),
                                           data_parallel(storage.mesh, storage.options), options);
      const auto batches = [&](int64_t step, int64_t rank) {
        std::vector<Batch> mine;
        for (int64_t m = 0; m < storage.micro_batches; ++m)
          mine.push_back(batch(step, (m * ranks + rank) * rows, rows));
        return mine;
      };
      expect_close(testing::train_on_ranks(program, 5, batches), expected);
    }
}

at::Tensor waves(int64_t step, int64_t first, at::IntArrayRef shape) {
  const int64_t rows = shape[0], columns = c10::multiply_integers(shape) / rows;
  return (at::arange(rows * columns, at::kDouble) + static_cast<double>(first * columns + 17 * step))
      .mul(0.7)
      .sin()
      .to(at::kFloat)
      .view(shape);
}

// Both layers' biases have one gradient, and both weights.
struct TwinsImpl : torch::nn::Module {
  TwinsImpl()
      : left(register_module("left", torch::nn::Linear(6, 5))),
        right(register_module("right", torch::nn::Linear(6, 5))),
        shift(register_parameter("shift", at::linspace(-1, 1, 5))) {}
  at::Tensor forward(const at::Tensor& x) { return at::tanh(left(x) + right(x) + shift); }
  torch::nn::Linear left, right;
  at::Tensor shift;
};
TORCH_MODULE(Twins);

TEST_CASE("parameters with one and the same gradient equal eager, in one unit and in several") {
  const auto batch = [](int64_t step, int64_t first, int64_t rows) { return Batch{waves(step, first, {rows, 6})}; };
  const auto loss = [](Twins& m, const Batch& b) { return m->forward(b[0]).square().mean(); };
  expect_equal_to_eager([] { return Twins(); }, loss, batch, {"", "[left, right]", "left, right"});
}

struct RecurrentImpl : torch::nn::Module {
  RecurrentImpl()
      : layer(register_module("layer", torch::nn::LSTM(torch::nn::LSTMOptions(3, 4).batch_first(true)))),
        cell(register_module("cell", torch::nn::LSTMCell(4, 3))) {}
  at::Tensor forward(const at::Tensor& x) {
    return std::get<0>(cell(std::get<0>(layer(x)).select(1, -1))).square().mean();
  }
  torch::nn::LSTM layer;
  torch::nn::LSTMCell cell;
};
TORCH_MODULE(Recurrent);

TEST_CASE("LSTM and LSTMCell, whose two biases have one gradient, equal eager") {
  const auto batch = [](int64_t step, int64_t first, int64_t rows) { return Batch{waves(step, first, {rows, 4, 3})}; };
  const auto loss = [](Recurrent& m, const Batch& b) { return m->forward(b[0]); };
  expect_equal_to_eager([] { return Recurrent(); }, loss, batch, {"", "layer, cell"});
}

// Each expert's weight is [in, out], its gradient comes as the transpose of [out, in].
struct ExpertsImpl : torch::nn::Module {
  ExpertsImpl() : weight(register_parameter("weight", waves(3, 0, {4, 6, 5}))) {}
  at::Tensor forward(const at::Tensor& x) { return at::einsum("bi,eio->boe", {x, weight}); }
  at::Tensor weight;
};
TORCH_MODULE(Experts);

TEST_CASE("a gradient with other strides than its parameter's equals eager in every layout") {
  const auto batch = [](int64_t step, int64_t first, int64_t rows) { return Batch{waves(step, first, {rows, 6})}; };
  const auto loss = [](Experts& m, const Batch& b) {
    return at::tanh(m->forward(b[0])).select(2, 1).square().mean() + m->forward(b[0]).square().mean();
  };
  {
    Experts experts;
    const at::Tensor gradient = torch::autograd::grad({loss(experts, batch(0, 0, 4))}, {experts->weight})[0];
    REQUIRE_FALSE(gradient.is_contiguous());  // else this is no test
  }
  expect_equal_to_eager([] { return Experts(); }, loss, batch, {""});
}

// What one of two processes does: the first programs are the same, then rank 1 comes with another batch.
TEST_CASE("launched rank: every program is compared before it runs" * doctest::skip()) {
  const auto world = init();
  REQUIRE(world->world_size() == 2);
  const auto rows = [&](int64_t count) { return Batch{waves(0, count * world->rank(), {count, 6})}; };
  const auto loss = [](torch::nn::Linear& m, const Batch& b) { return m->forward(b[0]).square().mean(); };
  const auto differ = doctest::Contains("rank 0 and rank 1 have different programs");
  for (const int64_t micro_batches : {1, 2}) {
    CompileOptions options;
    options.micro_batches = micro_batches;
    Step step(compile_program(meta_init([] { return torch::nn::Linear(6, 4); }), loss, AdamW{}, rows(4),
                              data_parallel(init_device_mesh({{"dp_shard", 2}})), options),
              world.get());
    const auto batches = [&](int64_t count) {
      return std::vector<Batch>(static_cast<size_t>(micro_batches), rows(count));
    };
    CHECK(step(batches(4)).loss > 0);
    CHECK_THROWS_WITH_AS(step(batches(4 - world->rank())), differ, UserError);
    CHECK(step.eval(rows(4)) > 0);
    CHECK_THROWS_WITH_AS(step.eval(rows(4 - world->rank())), differ, UserError);
    CHECK(step(batches(4)).loss > 0);
    CHECK(step.step == 2);
  }
  // Last, as it ends the world: ids of which one rank has one that is no row, which is found while the step runs.
  const auto look_up = [](torch::nn::Embedding& m, const Batch& b) { return m->forward(b[0]).square().mean(); };
  const Batch ids = {at::arange(4, at::kLong)};
  Step step(compile_program(meta_init([] { return torch::nn::Embedding(8, 6); }), look_up, AdamW{}, ids,
                            data_parallel(init_device_mesh({{"dp_shard", 2}}))),
            world.get());
  if (world->rank() == 1)
    CHECK_THROWS_WITH_AS(step({at::full({4}, 9, at::kLong)}), doctest::Contains("aten.embedding"), UserError);
  else
    CHECK_THROWS_WITH_AS(step(ids), doctest::Contains("rank 1 aborted: aten.embedding"), CommError);
}

TEST_CASE(
    "processes compare each program, of a step or an evaluation, with one micro-batch or several, before they run it") {
  const auto binary = std::filesystem::read_symlink("/proc/self/exe");
  const auto launcher = binary.parent_path() / "sfsdp";
  REQUIRE_MESSAGE(std::filesystem::exists(launcher), launcher.string(), " is not built");
  const std::string command = concat(launcher.string(), " launch -n 2 --exec ", binary.string(),
                                     " -- --no-skip '--test-case=launched rank*' > /dev/null");
  CHECK(std::system(command.c_str()) == 0);  // NOLINT(cert-env33-c): its own binary
}

}  // namespace conformance_test
}  // namespace sfsdp
