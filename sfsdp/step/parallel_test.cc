// SPDX-License-Identifier: BSD-3-Clause
// DDP, FSDP and HSDP on ranks that are threads equal one eager process on the same global batch.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>
#include <mutex>

#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/models/llama3/llama3.h"
#include "sfsdp/models/loss.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing/eager_torch.h"
#include "sfsdp/testing/run_ranks.h"

namespace sfsdp {
namespace {

models::Llama3Args tiny_llama(int64_t dim = 24) {
  models::Llama3Args args;
  args.dim = dim;
  args.n_layers = 2;
  args.n_heads = 4;
  args.n_kv_heads = 2;
  args.head_dim = 6;
  args.vocab_size = 29;
  args.hidden_dim = 34;
  return args;
}

Batch tokens(int64_t step, int64_t first, int64_t rows, int64_t seq = 12) {
  at::Tensor ids = at::empty({rows, seq + 1}, at::kLong);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i <= seq; ++i)
      ids.mutable_data_ptr<int64_t>()[r * (seq + 1) + i] = (7 * step + 5 * (first + r) + i * i + 3 * i) % 29;
  return {ids.narrow(1, 0, seq).contiguous(), ids.narrow(1, 1, seq).contiguous()};
}

const auto llama_loss = [](models::Llama3& m, const Batch& b) { return models::cross_entropy(m->forward(b[0]), b[1]); };

// Losses, norms and weights of eager training on the whole batch.
struct Reference {
  std::vector<StepResult> results;
  std::map<std::string, at::Tensor> state, gradients;
};

constexpr int64_t kGlobalBatch = 24;
constexpr AdamW kAdamW{.lr = 2e-3, .weight_decay = 0.1};

Reference eager_reference(int64_t steps) {
  // The same initial weights: those that a one-rank step starts from.
  models::Llama3 model = meta_init([] { return models::Llama3(tiny_llama()); });
  Step one = compile(model, llama_loss, kAdamW, tokens(0, 0, kGlobalBatch),
                     data_parallel(init_device_mesh({{"dp_shard", 1}})));
  models::Llama3 eager(tiny_llama());
  {
    at::NoGradGuard no_grad;
    for (auto& p : eager->named_parameters()) p.value().copy_(one.gather(p.key()));
  }
  testing::EagerTrainer trainer(eager.ptr(), kAdamW, 1.0);
  Reference reference;
  for (int64_t k = 0; k < steps; ++k) {
    reference.results.push_back(trainer.step([&] { return llama_loss(eager, tokens(k, 0, kGlobalBatch)); }));
    if (k == 0) reference.gradients = trainer.gradients;
  }
  reference.state = trainer.state();
  return reference;
}

void expect_parity(DeviceMesh mesh, DataParallelOptions options, int64_t micro_batches, const Reference& reference) {
  CAPTURE(to_string(mesh));
  CAPTURE(static_cast<int>(options.mode));
  models::Llama3 model = meta_init([] { return models::Llama3(tiny_llama()); });
  const auto ranks = static_cast<int>(mesh.world_size());
  const int64_t rows = kGlobalBatch / ranks / micro_batches;
  CompileOptions compile_options;
  compile_options.max_norm = 1.0;
  compile_options.micro_batches = micro_batches;
  auto program =
      compile_program(model, llama_loss, kAdamW, tokens(0, 0, rows), data_parallel(mesh, options), compile_options);
  std::mutex mutex;  // doctest's checks are made by one thread at a time
  testing::run_ranks(ranks, [&](comm::CommWorld& world) {
    Step step(program, &world);
    for (size_t k = 0; k < reference.results.size(); ++k) {
      std::vector<Batch> batches;
      for (int64_t m = 0; m < micro_batches; ++m)
        batches.push_back(tokens(static_cast<int64_t>(k), (m * ranks + world.rank()) * rows, rows));
      const StepResult got = step(batches);
      const StepResult& expected = reference.results[k];
      std::lock_guard lock(mutex);
      CHECK(std::abs(got.loss - expected.loss) <= 1e-6 * expected.loss);
      CHECK(std::abs(got.grad_norm - expected.grad_norm) <= 5e-6 * expected.grad_norm);
    }
    for (const auto& [name, value] : reference.state) {
      const at::Tensor whole = step.gather(name);
      std::lock_guard lock(mutex);
      CAPTURE(name);
      CHECK(whole.sizes() == value.sizes());
      CHECK((whole - value).abs().max().item<double>() <= 1e-5);
    }
  });
}

TEST_CASE("FSDP, DDP and HSDP equal eager on 1, 2, 3, 4 and 8 ranks") {
  const Reference reference = eager_reference(20);
  for (int64_t world : {1, 2, 3, 4, 8}) {
    expect_parity(init_device_mesh({{"dp_shard", world}}), {}, 1, reference);
    expect_parity(init_device_mesh({{"dp_replicate", world}}), {.mode = DataParallelMode::Replicate}, 1, reference);
  }
  for (int64_t shard : {2, 4})
    expect_parity(init_device_mesh({{"dp_replicate", 2}, {"dp_shard", shard}}), {.mode = DataParallelMode::HybridShard},
                  1, reference);
}

TEST_CASE("micro-batches, kept gathers and small replicated parameters change nothing") {
  const Reference reference = eager_reference(6);
  expect_parity(init_device_mesh({{"dp_shard", 1}}), {}, 3, reference);
  expect_parity(init_device_mesh({{"dp_shard", 2}}), {}, 3, reference);
  expect_parity(init_device_mesh({{"dp_shard", 2}}), {.reshard_after_forward = false}, 1, reference);
  expect_parity(init_device_mesh({{"dp_shard", 4}}), {.min_shard_numel = 100}, 1, reference);
  expect_parity(init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 2}}),
                {.mode = DataParallelMode::HybridShard, .min_shard_numel = 100}, 3, reference);
}

TEST_CASE("a sharded step's graph is text: it prints, parses back and is verified") {
  models::Llama3 model = meta_init([] { return models::Llama3(tiny_llama()); });
  auto program = compile_program(
      model, llama_loss, kAdamW, tokens(0, 0, 2),
      data_parallel(init_device_mesh({{"dp_replicate", 2}, {"dp_shard", 3}}), {.mode = DataParallelMode::HybridShard}));
  const std::string text = ir::print(program->training(tokens(0, 0, 2)).graph);
  const ir::Graph parsed = ir::parse_or_throw(text);
  CHECK(ir::print(parsed) == text);
  CHECK(ir::verify(parsed).empty());
}

TEST_CASE("FSDP gathers each parameter once per use region and reduces each gradient once") {
  const auto count = [](DeviceMesh mesh, DataParallelOptions options) {
    models::Llama3 model = meta_init([] { return models::Llama3(tiny_llama()); });
    auto program = compile_program(model, llama_loss, kAdamW, tokens(0, 0, 2), data_parallel(mesh, options));
    std::map<std::string, int64_t> counts;
    for (const auto& op : program->training(tokens(0, 0, 2)).graph.ops())
      if (op->is("all_gather") || op->is("reduce_scatter") || op->is("all_reduce")) ++counts[op->opcode];
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
    models::Llama3 model = meta_init([] { return models::Llama3(tiny_llama()); });
    auto program = compile_program(model, llama_loss, kAdamW, tokens(0, 0, 2), data_parallel(mesh, {.mode = mode}));
    std::map<std::string, at::Tensor> values;
    testing::run_ranks(static_cast<int>(mesh.world_size()), [&](comm::CommWorld& world) {
      Step step(program, &world);
      for (const StoredTensor& t : program->tensors()) {
        at::Tensor whole = step.gather(t.name);
        if (world.rank() == 0) values[t.name] = whole;
      }
    });
    return values;
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

}  // namespace
}  // namespace sfsdp
