// SPDX-License-Identifier: BSD-3-Clause
// DeepSeek-V3 on ranks that are threads trains as one eager process does on the same global batch, and on one rank to the bit.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "sfsdp/models/deepseek_v3/deepseek_v3.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing/parity_torch.h"
#include "sfsdp/testing/tiny_models_torch.h"

namespace sfsdp {
namespace {

// As V3: latent queries, a dense layer, sigmoid scores, two of four groups, one shared expert.
models::DeepSeekV3Args like_v3() {
  models::DeepSeekV3Args args;
  args.dim = 24;
  args.inter_dim = 40;
  args.moe_inter_dim = 16;
  args.n_layers = 3;
  args.n_heads = 3;
  args.vocab_size = 29;
  args.q_lora_rank = 12;
  args.kv_lora_rank = 10;
  args.qk_nope_head_dim = 6;
  args.qk_rope_head_dim = 4;
  args.v_head_dim = 5;
  args.num_experts = 8;
  args.num_shared_experts = 1;
  args.top_k = 3;
  args.score_func = models::RouterScore::Sigmoid;
  args.route_norm = true;
  args.route_scale = 2.5;
  args.n_expert_groups = 4;
  args.n_limited_groups = 2;
  return args;
}

// As V2's small one: queries made at once, softmax scores, no groups, no norm, two shared experts.
models::DeepSeekV3Args like_lite() {
  models::DeepSeekV3Args args = like_v3();
  args.n_layers = 2;
  args.n_dense_layers = 0;
  args.q_lora_rank = 0;
  args.num_shared_experts = 2;
  args.score_func = models::RouterScore::Softmax;
  args.route_norm = false;
  args.route_scale = 1;
  args.n_expert_groups = args.n_limited_groups = 1;
  return args;
}

Batch rows(int64_t step, int64_t first, int64_t count) { return testing::tokens(step, first, count); }

void expect_parity_on(const models::DeepSeekV3Args& args, const std::vector<testing::Case>& cases) {
  constexpr int64_t kSteps = 20;
  const auto make = [&] { return models::DeepSeekV3(args); };
  const testing::Reference reference = testing::eager(
      make, testing::loss_of, [](int64_t k) { return rows(k, 0, testing::kGlobalBatch); }, kSteps);
  for (const testing::Case& c : cases)
    testing::expect_parity(make, testing::loss_of, rows, testing::kGlobalBatch, c, reference);
}

// Where a gradient is rounding Adam makes steps of up to lr = 2e-3; over 20 steps weights may be a fortieth of one apart.
testing::Case on(std::vector<MeshAxis> axes, int64_t micro_batches = 1, DataParallelOptions options = {},
                 CompileOptions compile = {}) {
  return {init_device_mesh(std::move(axes)), {}, std::move(options), micro_batches, std::move(compile), 5e-5};
}

CompileOptions planned() {
  CompileOptions options;
  options.executor = ExecutorKind::Planned;
  return options;
}

CompileOptions all_again() {
  CompileOptions options;
  options.pipeline.remat.mode = passes::RematMode::Full;
  return options;
}

TEST_CASE("DeepSeek-V3 on 1, 2, 3 and 4 ranks trains as eager does over 20 steps") {
  expect_parity_on(like_v3(), {on({{"dp_shard", 1}}), on({{"dp_shard", 2}}), on({{"dp_shard", 3}}, 2),
                               on({{"dp_replicate", 2}, {"dp_shard", 2}}), on({{"dp_replicate", 2}}),
                               on({{"dp_shard", 2}}, 1, {.layout = ParameterLayout::Dim0}),
                               on({{"dp_shard", 2}}, 3, {}, planned()), on({{"dp_shard", 2}}, 1, {}, all_again())});
}

TEST_CASE("DeepSeek-V2's small mixture on 1 and 2 ranks trains as eager does over 20 steps") {
  expect_parity_on(like_lite(), {on({{"dp_shard", 1}}), on({{"dp_shard", 2}}), on({{"dp_shard", 2}}, 2),
                                 on({{"dp_shard", 2}}, 1, {}, planned())});
}

}  // namespace
}  // namespace sfsdp
