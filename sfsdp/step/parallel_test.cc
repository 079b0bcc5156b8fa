// SPDX-License-Identifier: BSD-3-Clause
// DDP, FSDP and HSDP on ranks that are threads equal one eager process on the same global batch.
#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <doctest/doctest.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>

#include "sfsdp/base/strings.h"
#include "sfsdp/exec/memory_counter.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/plan/memory_plan.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing.h"
#include "sfsdp/testing/eager_torch.h"
#include "sfsdp/testing/tiny_models_torch.h"
#include "tests/fixtures/fixture.h"

namespace sfsdp {
namespace parallel_test {

using testing::kAdamW, testing::kGlobalBatch, testing::loss_of, testing::make_gpt, testing::make_llama,
    testing::sum_of_squares, testing::tokens;

// Losses, norms and weights of eager training on the whole batch; gradients of step 1.
struct Reference {
  std::vector<StepResult> results;
  std::map<std::string, at::Tensor> state, gradients;
};

template <class Make>
Reference eager_reference(Make make, int64_t steps) {
  // The same initial weights: those that a one-rank step starts from.
  Step one = compile(meta_init(make), loss_of, kAdamW, tokens(0, 0, kGlobalBatch),
                     data_parallel(init_device_mesh({{"dp_shard", 1}})));
  auto eager = make();
  testing::copy_weights(one, *eager);
  testing::EagerTrainer trainer(eager.ptr(), kAdamW, 1.0);
  Reference reference;
  for (int64_t k = 0; k < steps; ++k) {
    reference.results.push_back(trainer.step([&] { return loss_of(eager, tokens(k, 0, kGlobalBatch)); }));
    if (k == 0) reference.gradients = trainer.gradients;
  }
  reference.state = trainer.state();
  return reference;
}

template <class Make>
void expect_parity(Make make, DeviceMesh mesh, DataParallelOptions options, int64_t micro_batches,
                   const Reference& reference) {
  CAPTURE(to_string(mesh));
  const auto ranks = static_cast<int>(mesh.world_size());
  const int64_t replicas = mesh.has("dp_replicate") ? mesh.size("dp_replicate") : 1;
  const int64_t rows = kGlobalBatch / ranks / micro_batches;
  CompileOptions compile_options;
  compile_options.max_norm = 1.0;
  compile_options.micro_batches = micro_batches;
  auto program = compile_program(meta_init(make), loss_of, kAdamW, tokens(0, 0, rows), data_parallel(mesh, options),
                                 compile_options);
  std::mutex mutex;                               // doctest's checks are made by one thread at a time
  std::map<std::string, double> gradient_errors;  // squares, summed over the ranks
  testing::run_ranks(ranks, [&](comm::CommWorld& world) {
    Step step(program, &world);
    const auto executor = step.executor(tokens(0, 0, rows));
    std::map<std::string, at::Tensor> gradients;  // this rank's rows, before clipping
    executor->on_op = [&](const ir::Op& op, const std::vector<at::Tensor>& results) {
      if (op.is("gradient")) gradients[op.attr<std::string>("param")] = results[0].clone();
    };
    for (size_t k = 0; k < reference.results.size(); ++k) {
      const StepResult got =
          step(testing::micro_batches_of(static_cast<int64_t>(k), world.rank(), ranks, micro_batches));
      executor->on_op = nullptr;
      const StepResult& expected = reference.results[k];
      std::lock_guard lock(mutex);
      CHECK(std::abs(got.loss - expected.loss) <= 1e-6 * expected.loss);
      CHECK(std::abs(got.grad_norm - expected.grad_norm) <= 5e-6 * expected.grad_norm);
    }
    for (const auto& [name, whole] : reference.gradients) {
      const StoredTensor& stored = *std::ranges::find(program->tensors(), name, &StoredTensor::name);
      const Chunk mine = step.range_of(name);
      if (mine.length == 0) continue;
      const int64_t begin = stored.sharded ? world.rank() % (ranks / replicas) * stored.shard : 0;
      const at::Tensor got =
          gradients.at(stored.buffer).view({-1}).narrow(0, stored.offset + mine.offset - begin, mine.length);
      std::lock_guard lock(mutex);
      gradient_errors[name] += sum_of_squares(got - whole.reshape({-1}).narrow(0, mine.offset, mine.length));
    }
    for (const auto& [name, value] : reference.state) {
      const at::Tensor whole = step.gather(name);
      std::lock_guard lock(mutex);
      CAPTURE(name);
      CHECK(whole.sizes() == value.sizes());
      // The true gradient of a key bias is 0: Adam makes steps of up to lr out of its rounding error.
      at::Tensor error = (whole - value).abs();
      if (name.ends_with("attn.c_attn.bias")) {
        CHECK(error.max().item<double>() <= 20 * kAdamW.lr);
        error.narrow(0, error.numel() / 3, error.numel() / 3).zero_();
      }
      CHECK(error.max().item<double>() <= 1e-5);
    }
  });
  for (const auto& [name, squares] : gradient_errors) {
    CAPTURE(name);
    const at::Tensor& whole = reference.gradients.at(name);
    const auto& stored = *std::ranges::find(program->tensors(), name, &StoredTensor::name);
    const int64_t copies = stored.sharded ? mesh.world_size() / program->strategy().axis_size("dp_shard") : ranks;
    CHECK(std::sqrt(squares / static_cast<double>(copies)) <= 1e-6 * std::sqrt(sum_of_squares(whole)));
  }
}

template <class Make>
void expect_parity_everywhere(Make make) {
  const Reference reference = eager_reference(make, 20);
  for (int64_t world : {1, 2, 3, 4, 8}) {
    expect_parity(make, init_device_mesh({{"dp_shard", world}}), {}, 1, reference);
    expect_parity(make, init_device_mesh({{"dp_replicate", world}}), {.mode = DataParallelMode::Replicate}, 1,
                  reference);
  }
  for (int64_t shard : {2, 4})
    expect_parity(make, init_device_mesh({{"dp_replicate", 2}, {"dp_shard", shard}}),
                  {.mode = DataParallelMode::HybridShard}, 1, reference);
}

TEST_CASE("FSDP, DDP and HSDP equal eager on 1, 2, 3, 4 and 8 ranks: Llama") { expect_parity_everywhere(make_llama); }

TEST_CASE("FSDP, DDP and HSDP equal eager on 1, 2, 3, 4 and 8 ranks: GPT") { expect_parity_everywhere(make_gpt); }

TEST_CASE("micro-batches, kept gathers and small replicated parameters change nothing") {
  const Reference reference = eager_reference(make_llama, 6);
  expect_parity(make_llama, init_device_mesh({{"dp_shard", 1}}), {}, 3, reference);
  expect_parity(make_llama, init_device_mesh({{"dp_shard", 2}}), {}, 3, reference);
  expect_parity(make_llama, init_device_mesh({{"dp_shard", 2}}), {.reshard_after_forward = false}, 1, reference);
  expect_parity(make_llama, init_device_mesh({{"dp_shard", 3}}), {.layout = ParameterLayout::Dim0}, 1, reference);
  expect_parity(make_llama, init_device_mesh({{"dp_shard", 3}}), {.units = "layers.*.*, norm, [output]"}, 2, reference);
  expect_parity(make_llama, init_device_mesh({{"dp_shard", 4}}), {.min_shard_numel = 100}, 1, reference);
  expect_parity(make_llama, init_device_mesh({{"dp_shard", 2}}), {.reduce_once = true}, 3, reference);
  expect_parity(make_llama, init_device_mesh({{"dp_shard", 3}}), {.reduce_once = true, .layout = ParameterLayout::Dim0},
                2, reference);
  expect_parity(make_llama, init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}}),
                {.mode = DataParallelMode::HybridShard, .reduce_once = true, .min_shard_numel = 100}, 3, reference);
  expect_parity(make_llama, init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}}),
                {.mode = DataParallelMode::HybridShard, .min_shard_numel = 100}, 3, reference);
}

TEST_CASE("ZeRO stages 0 to 3 equal eager on worlds of 2, 3 and 2 x 2") {
  const Reference reference = eager_reference(make_llama, 20);
  for (const int64_t stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    for (const int64_t world : {2, 3})
      expect_parity(make_llama, init_device_mesh({{"dp_shard", world}}), {.zero_stage = stage}, 1, reference);
    expect_parity(make_llama, init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}}),
                  {.mode = DataParallelMode::HybridShard, .zero_stage = stage}, 1, reference);
  }
}

TEST_CASE("ZeRO stages with micro-batches, rows instead of units, small whole parameters and a tied weight") {
  const Reference llama = eager_reference(make_llama, 6), gpt = eager_reference(make_gpt, 6);
  for (const int64_t stage : {0, 1, 2}) {
    CAPTURE(stage);
    expect_parity(make_llama, init_device_mesh({{"dp_shard", 2}}), {.zero_stage = stage}, 3, llama);
    expect_parity(make_llama, init_device_mesh({{"dp_shard", 3}}),
                  {.zero_stage = stage, .layout = ParameterLayout::Dim0}, 2, llama);
    expect_parity(make_llama, init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}}),
                  {.mode = DataParallelMode::HybridShard, .zero_stage = stage, .min_shard_numel = 100}, 3, llama);
    expect_parity(make_gpt, init_device_mesh({{"dp_shard", 2}}), {.zero_stage = stage}, 1, gpt);
  }
}

TEST_CASE("ZeRO stages 1 to 3 give the same bits, evaluation included; 1 other sums with micro-batches") {
  const auto run = [](int64_t stage, DeviceMesh mesh, DataParallelMode mode, const MixedPrecisionPolicy& precision,
                      ParameterLayout layout, int64_t micro_batches) {
    CompileOptions compile_options;
    compile_options.max_norm = 1.0;
    compile_options.micro_batches = micro_batches;
    const auto ranks = static_cast<int>(mesh.world_size());
    const int64_t rows = kGlobalBatch / ranks / micro_batches;
    auto program = compile_program(
        meta_init(make_llama), loss_of, kAdamW, tokens(0, 0, rows),
        data_parallel(mesh, {.mode = mode, .zero_stage = stage, .mixed_precision = precision, .layout = layout}),
        compile_options);
    std::vector<double> numbers;
    std::map<std::string, at::Tensor> state;
    testing::run_ranks(ranks, [&](comm::CommWorld& world) {
      Step step(program, &world);
      for (int64_t k = 0; k < 4; ++k) {
        const auto batches = testing::micro_batches_of(k, world.rank(), ranks, micro_batches);
        const double eval = step.eval(batches[0]);
        const StepResult result = step(batches);
        if (world.rank() == 0) numbers.insert(numbers.end(), {eval, result.loss, result.grad_norm});
      }
      auto whole = testing::gather_all(step);
      if (world.rank() == 0) state = std::move(whole);
    });
    return std::pair(numbers, state);
  };
  const MixedPrecisionPolicy bf16{ir::DType::bf16, ir::DType::f32};
  const DeviceMesh three = init_device_mesh({{"dp_shard", 3}}),
                   hybrid = init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}});
  for (const ParameterLayout layout : {ParameterLayout::Flat, ParameterLayout::Dim0})
    for (const MixedPrecisionPolicy& precision : {MixedPrecisionPolicy{}, bf16})
      for (const int64_t micro_batches : {1, 2})
        for (const auto& [mesh, mode] :
             {std::pair(three, DataParallelMode::FullyShard), std::pair(hybrid, DataParallelMode::HybridShard)}) {
          CAPTURE(to_string(mesh));
          CAPTURE(micro_batches);
          const auto [expected, state] = run(3, mesh, mode, precision, layout, micro_batches);
          for (const int64_t stage : {1, 2}) {
            CAPTURE(stage);
            const auto [got, got_state] = run(stage, mesh, mode, precision, layout, micro_batches);
            if (stage == 1 && micro_batches > 1) {  // adds micro-batches before ranks
              for (size_t i = 0; i < expected.size(); ++i)
                CHECK(got[i] == doctest::Approx(expected[i]).epsilon(precision.param_dtype ? 1e-3 : 2e-6));
              continue;
            }
            CHECK(got == expected);
            for (const auto& [name, value] : state) {
              CAPTURE(name);
              CHECK(at::equal(got_state.at(name), value));
            }
          }
        }
}

TEST_CASE("bytes that a rank holds fall from stage to stage: parameters, gradients, state; and the plan's peak") {
  for (const auto& [mesh, mode] :
       {std::pair(init_device_mesh({{"dp_shard", 2}}), DataParallelMode::FullyShard),
        std::pair(init_device_mesh({{"dp_shard", 4}}), DataParallelMode::FullyShard),
        std::pair(init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 4}}), DataParallelMode::HybridShard)}) {
    CAPTURE(to_string(mesh));
    std::vector<int64_t> held, gradients, peak;
    for (const int64_t stage : {0, 1, 2, 3}) {
      models::Llama3 model = meta_init(make_llama);
      CompileOptions options;
      options.micro_batches = 2;
      auto program = compile_program(model, loss_of, kAdamW, tokens(0, 0, 1),
                                     data_parallel(mesh, {.mode = mode, .zero_stage = stage}), options);
      const auto first = program->first();
      const ir::Graph& graph = first->graph;
      int64_t bytes = 0, whole = 0;  // gradients as they add up; parameters that all micro-batches read gathered
      for (const auto& op : graph.ops()) {
        if (op->is("accumulate") && op->section == ir::Section::Bwd) bytes += op->result()->type().bytes();
        if (op->is("all_gather.start") && op->section == ir::Section::Init) whole += op->result()->type().bytes();
      }
      // Pages of the window would be a good part of this small model.
      const plan::MemoryPlan plan = plan::plan_memory(graph, {.target = {.name = "test", .window_alignment = 256}});
      gradients.push_back(bytes);
      held.push_back(plan.state_bytes + whole + bytes);
      peak.push_back(plan.peak());
    }
    CHECK(held[0] > held[1]);
    CHECK(held[1] > held[2]);
    CHECK(held[2] > held[3]);
    CHECK(gradients[0] <= gradients[1]);  // padded to be cut
    CHECK(gradients[0] > gradients[2]);
    CHECK(gradients[1] == gradients[2] * mesh.size("dp_shard"));
    CHECK(gradients[2] == gradients[3]);
    // 1 and 2 have their peak early in backward, when there are few gradients yet.
    CHECK(peak[0] > std::max(peak[1], peak[2]));
    CHECK(std::min(peak[1], peak[2]) > peak[3]);
  }
}

struct ConvNetImpl : torch::nn::Module {
  ConvNetImpl()
      : conv(register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 5, 3).padding(1).bias(false)))),
        norm(register_module("norm", torch::nn::BatchNorm2d(5))),
        head(register_module("head", torch::nn::Linear(5 * 4 * 4, 3))) {}
  at::Tensor forward(const at::Tensor& x) { return head(at::relu(norm(conv(x))).flatten(1)); }
  torch::nn::Conv2d conv;
  torch::nn::BatchNorm2d norm;
  torch::nn::Linear head;
};
TORCH_MODULE(ConvNet);

Batch images(int64_t step, int64_t first, int64_t rows) {
  at::Tensor x = at::empty({rows, 2, 4, 4}), y = at::empty({rows}, at::kLong);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < 32; ++i)
      x.mutable_data_ptr<float>()[r * 32 + i] = std::sin(static_cast<float>((first + r + 1) * (i + 3) + step * 11));
    y.mutable_data_ptr<int64_t>()[r] = (step + first + r) % 3;
  }
  return {x, y};
}

// DDP: replicas with the same weights, each normalising its own share of the batch and keeping its own statistics,
// their gradients averaged.
void expect_batch_norm_of_ddp(DeviceMesh mesh, DataParallelMode mode) {
  CAPTURE(to_string(mesh));
  const auto loss = [](ConvNet& m, const Batch& b) { return at::cross_entropy_loss(m->forward(b[0]), b[1]); };
  const auto ranks = static_cast<size_t>(mesh.world_size());
  const int64_t rows = 12 / mesh.world_size();
  CompileOptions compile_options;
  compile_options.max_norm = 1.0;
  auto program = compile_program(meta_init([] { return ConvNet(); }), loss, kAdamW, images(0, 0, rows),
                                 data_parallel(mesh, {.mode = mode}), compile_options);
  std::vector<ConvNet> replicas(ranks);
  const auto initial = testing::train_on_ranks(program, 0, {}).state;
  {
    at::NoGradGuard no_grad;
    for (auto& p : replicas[0]->named_parameters()) p.value().copy_(initial.at(p.key()));
  }
  for (size_t r = 1; r < ranks; ++r) {
    replicas[r]->conv->weight = replicas[0]->conv->weight;
    replicas[r]->norm->weight = replicas[0]->norm->weight;
    replicas[r]->norm->bias = replicas[0]->norm->bias;
    replicas[r]->head->weight = replicas[0]->head->weight;
    replicas[r]->head->bias = replicas[0]->head->bias;
  }
  testing::EagerTrainer ddp(replicas[0].ptr(), kAdamW, 1.0);
  std::vector<StepResult> expected;
  for (int64_t k = 0; k < 10; ++k)
    expected.push_back(ddp.step([&] {
      at::Tensor sum = at::zeros({});
      for (size_t r = 0; r < ranks; ++r) sum = sum + loss(replicas[r], images(k, static_cast<int64_t>(r) * rows, rows));
      return sum / static_cast<double>(ranks);
    }));
  std::mutex mutex;
  testing::run_ranks(static_cast<int>(ranks), [&](comm::CommWorld& world) {
    Step step(program, &world);
    for (size_t k = 0; k < expected.size(); ++k) {
      const StepResult got = step(images(static_cast<int64_t>(k), world.rank() * rows, rows));
      std::lock_guard lock(mutex);
      CAPTURE(k);
      CHECK(got.loss == doctest::Approx(expected[k].loss).epsilon(1e-6));
      CHECK(got.grad_norm == doctest::Approx(expected[k].grad_norm).epsilon(5e-6));
    }
    for (const auto& p : replicas[0]->named_parameters()) {
      const at::Tensor whole = step.gather(p.key());
      std::lock_guard lock(mutex);
      CAPTURE(p.key());
      CHECK((whole - p.value()).abs().max().item<double>() <= 1e-5);
    }
    const auto state = step.state_dict();
    for (const auto& b : replicas[static_cast<size_t>(world.rank())]->named_buffers()) {
      std::lock_guard lock(mutex);
      CAPTURE(b.key());
      CHECK((state.at(b.key()) - b.value()).abs().max().item<double>() <= 1e-5);
    }
  });
}

TEST_CASE("batch norm equals DDP: each rank its own statistics, gradients averaged") {
  expect_batch_norm_of_ddp(init_device_mesh({{"dp_replicate", 2}}), DataParallelMode::Replicate);
  expect_batch_norm_of_ddp(init_device_mesh({{"dp_shard", 2}}), DataParallelMode::FullyShard);
  expect_batch_norm_of_ddp(init_device_mesh({{"dp_shard", 3}}), DataParallelMode::FullyShard);
}

struct ClassifierImpl : torch::nn::Module {
  ClassifierImpl() {
    for (auto& [name, layer] : {std::pair("up", &up), std::pair("down", &down)}) {
      register_module(name, *layer);
      at::Tensor& weight = (*layer)->weight;
      const auto values = testing::fixture_weight(std::string(name) + ".weight", weight.numel());
      weight.set_data(at::tensor(values).view(weight.sizes()));
    }
  }
  at::Tensor forward(const at::Tensor& x) { return down(at::tanh(up(x))); }
  torch::nn::Linear up{torch::nn::LinearOptions(24, 40).bias(false)}, down{torch::nn::LinearOptions(40, 7).bias(false)};
};
TORCH_MODULE(Classifier);

// share: micro-batch · ranks + rank
Batch classifier_batch(int64_t step, int64_t share) {
  const auto values = testing::fixture_uniform(concat("inputs.", step, ".", share), 4 * 24);
  return {at::tensor(values).to(at::kFloat).view({4, 24}), (at::arange(4) * 3 + step + share).remainder(7)};
}

// Rounding in bfloat16 is the same as FSDP2's: what could differ is how gradients are divided, reduced and added up.
TEST_CASE(
    "bfloat16 equals FSDP2: shards of micro-batches add up in float32, the mean over three ranks rounds nothing") {
  const auto loss = [](Classifier& m, const Batch& b) {
    return at::cross_entropy_loss(m->forward(b[0]).to(at::kFloat), b[1]);
  };
  for (const auto& [name, reduce_dtype] :
       {std::pair("bf16_reduction", ir::DType::bf16), std::pair("three_ranks", ir::DType::f32)}) {
    const testing::ClassifierRun expected = testing::read_classifier_run(name);
    for (const ParameterLayout layout : {ParameterLayout::Flat, ParameterLayout::Dim0}) {
      CAPTURE(name);
      CAPTURE(static_cast<int>(layout));
      CompileOptions options;
      options.micro_batches = expected.micro_batches;
      const auto program =
          compile_program(Classifier(), loss, AdamW{.lr = 1e-3, .weight_decay = 0.1}, classifier_batch(1, 0),
                          data_parallel(init_device_mesh({{"dp_shard", expected.ranks}}),
                                        {.mixed_precision = {ir::DType::bf16, reduce_dtype}, .layout = layout}),
                          options);
      const auto batches = [&](int64_t step, int64_t rank) {
        std::vector<Batch> mine;
        for (int64_t m = 0; m < expected.micro_batches; ++m)
          mine.push_back(classifier_batch(step + 1, m * expected.ranks + rank));
        return mine;
      };
      const auto steps = static_cast<int64_t>(expected.steps.size());
      const std::vector<StepResult> got = testing::train_on_ranks(program, steps, batches).results;
      for (size_t k = 0; k < got.size(); ++k) {
        CAPTURE(k);
        CHECK(got[k].loss == doctest::Approx(expected.steps[k].loss).epsilon(1e-6));
        CHECK(got[k].grad_norm == doctest::Approx(expected.steps[k].grad_norm).epsilon(1e-6));
      }
    }
  }
}

TEST_CASE("a sharded step's graph is text: it prints, parses back and is verified") {
  models::Llama3 model = meta_init(make_llama);
  auto program = compile_program(
      model, loss_of, kAdamW, tokens(0, 0, 2),
      data_parallel(init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 3}}), {.mode = DataParallelMode::HybridShard}));
  const auto first = program->first();
  const std::string text = ir::print(first->graph);
  const ir::Graph parsed = ir::parse_or_throw(text);
  CHECK(ir::print(parsed) == text);
  CHECK(ir::verify(parsed).empty());
}

TEST_CASE("FSDP gathers each parameter once per use region and reduces each gradient once") {
  const auto count = [](DeviceMesh mesh, DataParallelOptions options) {
    options.layout = ParameterLayout::Dim0;
    models::Llama3 model = meta_init(make_llama);
    CompileOptions compile_options;
    compile_options.pipeline.disable = {"copy_buckets", "reshard"};
    auto program =
        compile_program(model, loss_of, kAdamW, tokens(0, 0, 2), data_parallel(mesh, options), compile_options);
    std::map<std::string, int64_t> counts;
    const auto first = program->first();
    for (const auto& op : first->graph.ops()) {
      const std::string kind(ir::collective_kind(*op));
      if (kind == "all_gather" || kind == "reduce_scatter" || kind == "all_reduce") ++counts[kind];
    }
    return counts;
  };
  using Counts = std::map<std::string, int64_t>;
  constexpr int64_t kParams = 2 * 9 + 3;
  // The embedding table is not read by backward; two all_reduces: loss and gradient norm.
  CHECK(count(init_device_mesh({{"dp_shard", 2}}), {}) ==
        Counts{{"all_gather", 2 * kParams - 1}, {"all_reduce", 2}, {"reduce_scatter", kParams}});
  CHECK(count(init_device_mesh({{"dp_shard", 2}}), {.reshard_after_forward = false}) ==
        Counts{{"all_gather", kParams}, {"all_reduce", 2}, {"reduce_scatter", kParams}});
  CHECK(count(init_device_mesh({{"dp_replicate", 2}}), {.mode = DataParallelMode::Replicate}) ==
        Counts{{"all_reduce", kParams + 1}});
  CHECK(count(init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}}), {.mode = DataParallelMode::HybridShard}) ==
        Counts{{"all_gather", 2 * kParams - 1}, {"all_reduce", kParams + 2}, {"reduce_scatter", kParams}});
  CHECK(count(init_device_mesh({{"dp_shard", 1}}), {}) == Counts{});
}

TEST_CASE("every mesh starts from bit-identical weights") {
  const auto weights = [](DeviceMesh mesh, DataParallelMode mode) {
    models::Llama3 model = meta_init(make_llama);
    auto program = compile_program(model, loss_of, kAdamW, tokens(0, 0, 2), data_parallel(mesh, {.mode = mode}));
    return testing::train_on_ranks(program, 0, {}).state;
  };
  const auto one = weights(init_device_mesh({{"dp_shard", 1}}), DataParallelMode::FullyShard);
  CHECK(one.at("layers.0.attention.wq.weight").abs().max().item<float>() > 0.01f);
  for (int64_t world : {2, 3, 5}) {
    const auto many = weights(init_device_mesh({{"dp_shard", world}}), DataParallelMode::FullyShard);
    for (const auto& [name, value] : one) {
      CAPTURE(name);
      CHECK(at::equal(value, many.at(name)));
    }
  }
}

struct OrthogonalImpl : torch::nn::Module {
  OrthogonalImpl() : map(register_module("map", torch::nn::Linear(6, 9))) { torch::nn::init::orthogonal_(map->weight); }
  at::Tensor forward(const at::Tensor& x) { return map(x); }
  torch::nn::Linear map;
};
TORCH_MODULE(Orthogonal);

TEST_CASE("an initialisation that needs the whole tensor is run whole and cut") {
  const auto loss = [](Orthogonal& m, const Batch& b) { return m->forward(b[0]).square().mean(); };
  const auto weight = [&](int64_t world) {
    auto model = meta_init([] { return Orthogonal(); });
    auto program = compile_program(model, loss, AdamW{}, {at::ones({2, 6})},
                                   data_parallel(init_device_mesh({{"dp_shard", world}})));
    at::Tensor whole;
    testing::run_ranks(static_cast<int>(world), [&](comm::CommWorld& comm) {
      Step step(program, &comm);
      at::Tensor mine = step.gather("map.weight");
      if (comm.rank() == 0) whole = mine;
    });
    return whole;
  };
  const at::Tensor one = weight(1);
  CHECK((one.t().matmul(one) - at::eye(6)).abs().max().item<double>() < 1e-5);
  CHECK(at::equal(weight(2), one));
  CHECK(at::equal(weight(4), one));
}

// Bytes of this thread's CPU tensors, as LibTorch's allocator reports them.
class LiveBytes final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    now += bytes;
    peak = std::max(peak, now);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t now = 0, peak = 0;
};

struct StackImpl : torch::nn::Module {
  StackImpl() {
    for (int i = 0; i < 8; ++i) layers.push_back(register_module(concat("layers_", i), torch::nn::Linear(256, 256)));
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) x = layer(x);
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Stack);

TEST_CASE("a module with real weights is taken over and sharded as it is") {
  torch::manual_seed(3);
  Stack model, copy;
  {
    at::NoGradGuard no_grad;
    for (auto& p : copy->named_parameters()) p.value().copy_(*model->named_parameters().find(p.key()));
  }
  const auto loss = [](Stack& m, const Batch& b) { return m->forward(b[0]).square().mean(); };
  auto program =
      compile_program(model, loss, AdamW{}, {at::empty({2, 256})}, data_parallel(init_device_mesh({{"dp_shard", 4}})));
  CHECK(model->layers[0]->weight.is_meta());
  testing::run_ranks(4, [&](comm::CommWorld& world) {
    Step step(program, &world);
    for (auto& p : copy->named_parameters()) CHECK(at::equal(step.gather(p.key()), p.value()));
  });
}

TEST_CASE("real weights go as the shards come: what is left is the shards") {
  constexpr int64_t kLayer = (256 + 1) * 256 * 4, kModel = 8 * kLayer;
  const auto loss = [](Stack& m, const Batch& b) { return m->forward(b[0]).square().mean(); };
  for (const auto layout : {ParameterLayout::Flat, ParameterLayout::Dim0})
    testing::run_ranks(4, [&](comm::CommWorld& world) {  // each with a module of its own, as in a process
      auto live = std::make_shared<LiveBytes>();
      const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, live);
      Stack model;
      const std::vector<at::Tensor> kept = model->parameters();  // as an optimizer of the user's would hold them
      for (const at::Tensor& p : kept) p.data().fill_(0.5);      // ranks draw at the same time, each other values
      SFSDP_CHECK(live->now >= kModel, live->now);
      // SGD without momentum: the parameters are all state.
      auto program = compile_program(model, loss, SGD{}, {at::empty({2, 256})},
                                     data_parallel(init_device_mesh({{"dp_shard", 4}}), {.layout = layout}));
      live->peak = live->now;
      const Step step(program, &world);
      SFSDP_CHECK(live->peak <= kModel + kLayer, live->peak, " beside a model of ", kModel);
      SFSDP_CHECK(live->now <= kModel / 4 + kLayer / 4, live->now, " for shards of ", kModel / 4);
    });
}

// The planned executor's regions and its workspace are in pages of 2 MiB.
TEST_CASE("a step holds what is planned for it, and little more") {
  exec::count_memory();
  for (const ExecutorKind executor : {ExecutorKind::Reference, ExecutorKind::Planned}) {
    const bool is_planned = executor == ExecutorKind::Planned;
    CAPTURE(is_planned);
    const int64_t before = exec::allocated_bytes();
    const auto loss = [](Stack& m, const Batch& b) { return m->forward(b[0]).square().mean(); };
    CompileOptions options;
    options.executor = executor;
    Step step = compile(meta_init([] { return Stack(); }), loss, AdamW{}, {at::ones({512, 256})},
                        data_parallel(init_device_mesh({{"dp_shard", 1}})), nullptr, options);
    const Batch batch = {at::ones({512, 256})};
    const auto first = step.program().first();
    const plan::MemoryPlan plan = plan::plan_memory(first->graph, {.blocking = true});
    step(batch);
    exec::restart_most_allocated();
    step(batch);
    const plan::MemoryPlan& memory = first->plan.memory;
    const int64_t of_plan =
        memory.peak() - memory.workspace_bytes() + memory.workspaces[0];  // communicators make their own
    const auto planned = static_cast<double>(is_planned ? of_plan : plan.state_bytes + plan.live_bytes);
    const auto measured = static_cast<double>(exec::most_allocated_bytes() - before);
    CAPTURE(planned);
    CAPTURE(measured);
    CHECK(measured >= planned * 0.99);
    CHECK(measured <= planned * 1.02 + (is_planned ? 4.0 * (2 << 20) : 0.0));
  }
}

}  // namespace parallel_test
}  // namespace sfsdp
