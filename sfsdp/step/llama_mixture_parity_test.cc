// SPDX-License-Identifier: BSD-3-Clause
// Qwen3-MoE and Mixtral on ranks that are threads train as one eager process does on the same global batch, over every axis.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "sfsdp/models/llama3/llama3.h"
#include "sfsdp/models/tensor_parallel_plans.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing/eager_torch.h"
#include "sfsdp/testing/parity_torch.h"
#include "sfsdp/testing/tiny_models_torch.h"

namespace sfsdp {
namespace llama_mixture_parity_test {

// Norms on q and k, three of eight experts, a dense layer first.
models::Llama3Args like_qwen3() {
  models::Llama3Args args = testing::tiny_llama();
  args.n_layers = 3;
  args.vocab_size = 32;
  args.hidden_dim = 40;
  args.qk_norm = true;
  args.rope_scaling.reset();
  args.num_experts = 8;
  args.top_k = 3;
  args.moe_inter_dim = 16;
  args.n_dense_layers = 1;
  return args;
}

// Two of four experts in every layer.
models::Llama3Args like_mixtral() {
  models::Llama3Args args = like_qwen3();
  args.n_layers = 2;
  args.qk_norm = false;
  args.num_experts = 4;
  args.top_k = 2;
  args.n_dense_layers = 0;
  return args;
}

Batch rows(int64_t step, int64_t first, int64_t count) { return testing::tokens(step, first, count); }

void expect_parity_on(const models::Llama3Args& args, const std::vector<testing::Case>& cases) {
  constexpr int64_t kSteps = 20;
  const auto make = [&] { return models::Llama3(args); };
  const testing::Reference reference = testing::eager(
      make, testing::loss_of, [](int64_t k) { return rows(k, 0, testing::kGlobalBatch); }, kSteps);
  for (const testing::Case& c : cases)
    testing::expect_parity(make, testing::loss_of, rows, testing::kGlobalBatch, c, reference);
}

testing::Case on(std::vector<MeshAxis> axes, int64_t micro_batches = 1) {
  return {init_device_mesh(std::move(axes)), {}, {}, micro_batches, {}};
}

testing::Case planned(testing::Case c) {
  c.compile.executor = ExecutorKind::Planned;
  return c;
}

// The rules of models/tensor_parallel_plans.h, as a config has them.
testing::Case cut(std::vector<MeshAxis> axes, int64_t micro_batches = 1) {
  std::vector<TensorParallelRule> rules;
  for (const std::string& entry : models::tensor_parallel_plan("llama3")) {
    const size_t equals = entry.rfind('=');
    rules.push_back({entry.substr(0, equals), Shard(entry[equals + 1] - '0'), true});
  }
  testing::Case c = on(std::move(axes), micro_batches);
  c.rules = tensor_parallel(std::move(rules));
  return c;
}

testing::Case exchanged(testing::Case c) {
  c.expert.dispatch = DispatchMethod::Exchange;
  return c;
}

testing::Case with_room(double capacity, testing::Case c) {
  c.expert.capacity = capacity;
  return c;
}

std::vector<testing::Case> all_axes() {
  return {on({{"dp_shard", 1}}),
          on({{"dp_shard", 3}}, 2),
          planned(on({{"dp_replicate", 2}, {"dp_shard", 2}})),
          cut({{"tp", 2}}),
          planned(cut({{"dp_shard", 2}, {"tp", 2}}, 2)),
          cut({{"cp", 2}, {"tp", 2}}),
          on({{"ep", 2}}),
          planned(on({{"dp_shard", 2}, {"ep", 4}})),
          exchanged(on({{"ep", 4}}, 2)),
          with_room(0.5, on({{"dp_shard", 2}, {"ep", 2}}))};
}

TEST_CASE("Qwen3-MoE over dp, tp, cp and ep trains as eager does over 20 steps") {
  expect_parity_on(like_qwen3(), all_axes());
}

TEST_CASE("Mixtral over dp, tp, cp and ep trains as eager does over 20 steps") {
  expect_parity_on(like_mixtral(), all_axes());
}

// Routers compute in float32, and what they are owed is added up in it: where ranks have other samples or tokens, and where they are made in
// other ranks' rows. A token whose scores are close may choose other experts.
TEST_CASE("in bfloat16 Qwen3-MoE over ep, cp and tp trains as one rank does") {
  const auto train = [&](const testing::Case& c, passes::RematMode remat) {
    DataParallelOptions half;
    half.mixed_precision = {ir::DType::bf16, ir::DType::f32};
    CompileOptions options;
    options.pipeline.remat.mode = remat;
    const Strategy strategy = data_parallel(c.mesh, half, c.rules, c.context, c.expert);
    const int64_t count = testing::kGlobalBatch / strategy.data_ranks();
    const auto program = compile_program(meta_init([] { return models::Llama3(like_qwen3()); }), testing::loss_of,
                                         testing::kAdamW, rows(0, 0, count), strategy, options);
    return testing::train_on_ranks(program, 4, [&](int64_t step, int64_t rank) -> std::vector<Batch> {
      return {rows(step, c.mesh.group_rank(rank, strategy.data_axes()) * count, count)};
    });
  };
  const testing::Trained one = train(on({{"dp_shard", 1}}), passes::RematMode::None);
  testing::Case by_sequence = cut({{"dp_shard", 2}, {"tp", 2}});
  by_sequence.rules.options.sequence_parallel = true;
  for (const testing::Case& c :
       {on({{"ep", 2}}), exchanged(on({{"dp_shard", 2}, {"ep", 2}})), on({{"cp", 2}}), by_sequence})
    for (const passes::RematMode remat : {passes::RematMode::None, passes::RematMode::Full}) {
      CAPTURE(to_string(c.mesh));
      const testing::Trained got = train(c, remat);
      for (size_t k = 0; k < one.results.size(); ++k) {
        CHECK(got.results[k].loss == doctest::Approx(one.results[k].loss).epsilon(1e-3));
        CHECK(got.results[k].grad_norm == doctest::Approx(one.results[k].grad_norm).epsilon(2e-2));
      }
    }
}

// Its plan names experts, which no layer has.
TEST_CASE("a mixture whose layers are all dense is cut over tp by the plan of its family") {
  models::Llama3Args args = like_mixtral();
  args.n_dense_layers = args.n_layers;
  expect_parity_on(args, {cut({{"tp", 2}}), cut({{"dp_shard", 2}, {"tp", 2}})});
}

}  // namespace llama_mixture_parity_test
}  // namespace sfsdp
