// SPDX-License-Identifier: BSD-3-Clause
// DeepSeek-V3 on ranks that are threads trains as one eager process does on the same global batch.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/models/deepseek_v3/deepseek_v3.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing/block_collectives.h"
#include "sfsdp/testing/parity_torch.h"
#include "sfsdp/testing/tiny_models_torch.h"

namespace sfsdp {
namespace mixture_parity_test {

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

// As V2's small one: queries made at once, softmax scores, no groups, no norm, no biases, two shared experts.
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
  args.expert_bias = false;
  return args;
}

// As V2's large one: latent queries, and of four groups the two with the best scores.
models::DeepSeekV3Args like_v2() {
  models::DeepSeekV3Args args = like_lite();
  args.q_lora_rank = 12;
  args.n_expert_groups = 4;
  args.n_limited_groups = 2;
  args.scores_of_group = 1;
  args.route_scale = 16;
  return args;
}

Batch rows(int64_t step, int64_t first, int64_t count) { return testing::tokens(step, first, count); }

// What the reports say, of each mixture by itself, in doubles.
void balance_by_hand(torch::nn::Module& module, double rate) {
  const at::NoGradGuard no_grad;
  const auto buffers = module.named_buffers();
  for (const auto& buffer : buffers) {
    const size_t at = buffer.key().rfind("tokens_per_expert");
    if (at == std::string::npos) continue;
    at::Tensor counts = buffer.value(), bias = buffers[buffer.key().substr(0, at) + "expert_bias"];
    const auto experts = static_cast<size_t>(counts.numel());
    std::vector<double> change(experts);
    const double mean = counts.sum().item<double>() / static_cast<double>(experts);
    double centre = 0;
    for (size_t e = 0; e < experts; ++e) {
      const double n = counts[static_cast<int64_t>(e)].item<double>();
      change[e] = n < mean ? rate : n > mean ? -rate : 0;
      centre += change[e] / static_cast<double>(experts);
    }
    for (size_t e = 0; e < experts; ++e) bias[static_cast<int64_t>(e)] += change[e] - centre;
    counts.zero_();
  }
}

void expect_parity_on(const models::DeepSeekV3Args& args, const std::vector<testing::Case>& cases) {
  constexpr int64_t kSteps = 20;
  const auto make = [&] { return models::DeepSeekV3(args); };
  const double rate = args.load_balance_coeff;
  const testing::Reference reference = testing::eager(
      make, testing::loss_of, [](int64_t k) { return rows(k, 0, testing::kGlobalBatch); }, kSteps,
      [&](torch::nn::Module& module) { balance_by_hand(module, rate); });
  for (const auto& [name, value] : reference.state)
    if (name.ends_with("expert_bias")) CHECK((value.abs().max().item<double>() > rate / 2) == (rate > 0));
  for (testing::Case c : cases) {
    c.compile.balance.rate = rate;
    testing::expect_parity(make, testing::loss_of, rows, testing::kGlobalBatch, c, reference);
  }
}

testing::Case on(std::vector<MeshAxis> axes, int64_t micro_batches = 1, DataParallelOptions options = {},
                 CompileOptions compile = {}) {
  return {init_device_mesh(std::move(axes)), {}, std::move(options), micro_batches, std::move(compile)};
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

CompileOptions products_kept() {
  CompileOptions options;
  options.pipeline.remat.mode = passes::RematMode::Op;
  return options;
}

TEST_CASE("DeepSeek-V3 on 1, 2, 3 and 4 ranks trains as eager does over 20 steps") {
  expect_parity_on(like_v3(), {on({{"dp_shard", 1}}), on({{"dp_shard", 2}}), on({{"dp_shard", 3}}, 2),
                               on({{"dp_replicate", 2}, {"dp_shard", 2}}), on({{"dp_replicate", 2}}),
                               on({{"dp_shard", 2}}, 1, {.layout = ParameterLayout::Dim0}),
                               on({{"dp_shard", 2}}, 3, {}, planned()), on({{"dp_shard", 2}}, 1, {}, all_again())});
}

TEST_CASE("biases of experts move by the tokens of all ranks and micro-batches, as by hand") {
  models::DeepSeekV3Args args = like_v3();
  args.load_balance_coeff = 0.01;
  expect_parity_on(args, {on({{"dp_shard", 1}}), on({{"dp_shard", 2}}, 3), on({{"dp_replicate", 2}, {"dp_shard", 2}}),
                          on({{"dp_shard", 2}}, 2, {}, planned()), on({{"dp_shard", 2}}, 1, {}, all_again())});
}

TEST_CASE("a step without a finite norm moves no bias of an expert") {
  models::DeepSeekV3Args args = like_v3();
  args.load_balance_coeff = 0.01;
  const auto loss = [](models::DeepSeekV3& model, const Batch& b) {
    return models::cross_entropy(model->forward(b[0]), b[1]) * b[2].sum();
  };
  const auto with_factor = [](double factor) {
    Batch batch = rows(0, 0, 4);
    batch.push_back(at::full({4}, factor));
    return batch;
  };
  CompileOptions options;
  options.balance.rate = args.load_balance_coeff;
  Step step = compile(meta_init([&] { return models::DeepSeekV3(args); }), loss, testing::kAdamW, with_factor(1),
                      data_parallel(init_device_mesh({{"dp_shard", 1}})), nullptr, options);
  const auto bias = [&] { return step.gather("layers.1.moe.expert_bias").clone(); };
  CHECK(step(with_factor(std::numeric_limits<double>::infinity())).skipped);
  CHECK(bias().abs().max().item<double>() == 0);
  CHECK_FALSE(step(with_factor(1)).skipped);
  CHECK(bias().abs().max().item<double>() > 0);
}

TEST_CASE("DeepSeek-V2's small mixture on 1 and 2 ranks trains as eager does over 20 steps") {
  expect_parity_on(like_lite(), {on({{"dp_shard", 1}}), on({{"dp_shard", 2}}), on({{"dp_shard", 2}}, 2),
                                 on({{"dp_shard", 2}}, 1, {}, planned())});
}

// models/tensor_parallel_plans.h
const std::vector<TensorParallelRule> kRules = {
    {"*.wq|wq_b|wkv_b", Shard(0)}, {"*.wo", Shard(1)}, {"*.experts.w1|w3", Shard(1)},       {"*.experts.w2", Shard(2)},
    {"*.w1|w3", Shard(0)},         {"*.w2", Shard(1)}, {"tok_embeddings|output", Shard(0)},
};

testing::Case cut(std::vector<MeshAxis> axes, TensorParallelOptions tensor = {}, int64_t micro_batches = 1,
                  DataParallelOptions options = {}, CompileOptions compile = {}) {
  testing::Case c = on(std::move(axes), micro_batches, std::move(options), std::move(compile));
  c.rules = tensor_parallel(kRules, tensor);
  return c;
}

models::DeepSeekV3Args divisible(models::DeepSeekV3Args args) {
  args.n_heads = 4;
  args.vocab_size = 32;
  return args;
}

TEST_CASE("DeepSeek-V3 over tp trains as eager does: heads, every expert's width and the vocabulary are cut") {
  models::DeepSeekV3Args args = divisible(like_v3());
  args.load_balance_coeff = 0.01;
  expect_parity_on(args, {cut({{"tp", 2}}), cut({{"tp", 4}}, {.sequence_parallel = true}),
                          cut({{"dp_shard", 2}, {"tp", 2}}, {.loss_parallel = false}, 3),
                          cut({{"dp_replicate", 2}, {"dp_shard", 2}, {"tp", 2}}, {}, 1, {.zero_stage = 1}),
                          cut({{"dp_shard", 2}, {"tp", 2}}, {.sequence_parallel = true}, 1, {}, planned()),
                          cut({{"tp", 2}}, {}, 2, {}, all_again())});
}

// Forward: attention, and the shared and the routed experts together. Backward: latents of queries and of keys, and the turned part of keys
// that all heads share; then tokens, and in a mixture what the weights of a token's experts are owed.
TEST_CASE(
    "a block of DeepSeek-V3 over tp has 2 all_reduces forward, and 4 backward, with a mixture 5, and nothing else") {
  const auto program = compile_program(
      meta_init([] { return models::DeepSeekV3(divisible(like_v3())); }), testing::loss_of, testing::kAdamW,
      rows(0, 0, 4), data_parallel(init_device_mesh({{"dp_shard", 2}, {"tp", 2}}), {}, tensor_parallel(kRules)), {});
  const auto variant = program->first();
  CHECK(testing::collectives_by_block(variant->graph, "tp") ==
        std::map<std::string, std::string>{{"", "1 bwd all_reduce, 1 fwd all_gather, 1 fwd all_reduce"},
                                           {"layers.0", "4 bwd all_reduce, 2 fwd all_reduce"},
                                           {"layers.1", "5 bwd all_reduce, 2 fwd all_reduce"},
                                           {"layers.2", "5 bwd all_reduce, 2 fwd all_reduce"}});
}

TEST_CASE("DeepSeek-V3 over cp trains as eager does") {
  models::DeepSeekV3Args args = divisible(like_v3());
  args.load_balance_coeff = 0.01;
  expect_parity_on(args, {cut({{"cp", 2}}), cut({{"dp_shard", 2}, {"cp", 2}}, {}, 3),
                          cut({{"cp", 2}, {"tp", 2}}, {.sequence_parallel = true}, 1, {}, planned())});
}

testing::Case gathered(testing::Case c) {
  c.expert.dispatch = DispatchMethod::Gather;
  return c;
}
testing::Case exchanged(testing::Case c) {
  c.expert.dispatch = DispatchMethod::Exchange;
  return c;
}

// Each rank has some samples and some experts. Tokens have three experts: with the default, two ranks gather and eight exchange.
TEST_CASE("DeepSeek-V3 over ep trains as eager does where tokens are gathered") {
  models::DeepSeekV3Args args = like_v3();
  args.load_balance_coeff = 0.01;
  expect_parity_on(
      args, {on({{"ep", 2}}), on({{"ep", 8}}), gathered(on({{"ep", 8}})), on({{"dp_shard", 2}, {"ep", 2}}, 3),
             gathered(on({{"dp_replicate", 2}, {"ep", 4}}, 1, {.zero_stage = 1})),
             gathered(on({{"dp_shard", 2}, {"ep", 4}}, 1, {}, planned())),
             gathered(on({{"ep", 4}}, 2, {}, all_again())), on({{"dp_shard", 2}, {"ep", 2}}, 1, {}, products_kept()),
             on({{"dp_shard", 3}, {"ep", 2}}, 1, {.reduce_once = true, .min_shard_numel = 1000})});
}

TEST_CASE("DeepSeek-V3 over ep trains as eager does where tokens are exchanged") {
  models::DeepSeekV3Args args = like_v3();
  args.load_balance_coeff = 0.01;
  expect_parity_on(
      args, {exchanged(on({{"ep", 2}})), exchanged(on({{"ep", 8}})), exchanged(on({{"dp_shard", 2}, {"ep", 2}}, 3)),
             exchanged(on({{"dp_replicate", 2}, {"ep", 4}}, 1, {.zero_stage = 1})),
             exchanged(on({{"dp_shard", 2}, {"ep", 4}}, 1, {}, planned())),
             exchanged(on({{"ep", 4}}, 2, {}, all_again())), exchanged(on({{"ep", 4}}, 2, {}, planned())),
             exchanged(on({{"dp_shard", 2}, {"ep", 2}}, 1, {}, products_kept()))});
}

testing::Case with_room(double capacity, testing::Case c) {
  c.expert.capacity = capacity;
  return c;
}

// Choices are uneven, so some steps need further rounds: half an even share of rows at once makes them certain.
TEST_CASE("DeepSeek-V3 over ep trains as eager does where ranks have room for some of their rows at once") {
  models::DeepSeekV3Args args = like_v3();
  args.load_balance_coeff = 0.01;
  expect_parity_on(args,
                   {with_room(1, on({{"ep", 2}})), with_room(0.5, on({{"ep", 8}})),
                    with_room(1.25, on({{"dp_shard", 2}, {"ep", 2}}, 3)),
                    with_room(1, on({{"dp_replicate", 2}, {"ep", 4}}, 1, {.zero_stage = 1})),
                    with_room(0.5, on({{"dp_shard", 2}, {"ep", 4}}, 1, {}, planned())),
                    with_room(1, on({{"ep", 4}}, 2, {}, all_again())), with_room(1, on({{"ep", 2}}, 3, {}, planned())),
                    with_room(0.75, on({{"dp_shard", 2}, {"ep", 2}}, 1, {}, products_kept())),
                    with_room(1, on({{"cp", 2}, {"ep", 2}}))});
}

// A gather of the chosen experts; tokens to experts and back, each way.
TEST_CASE("a mixture of DeepSeek-V3 over ep exchanges rows twice each way") {
  const auto program = compile_program(
      meta_init([] { return models::DeepSeekV3(like_v3()); }), testing::loss_of, testing::kAdamW, rows(0, 0, 4),
      data_parallel(init_device_mesh({{"dp_shard", 2}, {"ep", 2}}), {}, {}, {}, {.dispatch = DispatchMethod::Exchange}),
      {});
  const auto variant = program->first();
  const std::string mixture = "2 bwd all_to_all_v, 1 fwd all_gather, 2 fwd all_to_all_v";
  CHECK(testing::collectives_by_block(variant->graph, "ep") ==
        std::map<std::string, std::string>{{"", "2 fwd all_reduce"}, {"layers.1", mixture}, {"layers.2", mixture}});
}

// Forward: a gather of the chosen experts, of their weights and of the tokens, and a sum that goes back. Backward: the tokens' gradients,
// and the sums of what tokens and weights are owed.
TEST_CASE("a mixture of DeepSeek-V3 over ep gathers tokens once each way, and a dense block sends nothing") {
  const auto program =
      compile_program(meta_init([] { return models::DeepSeekV3(like_v3()); }), testing::loss_of, testing::kAdamW,
                      rows(0, 0, 4), data_parallel(init_device_mesh({{"dp_shard", 2}, {"ep", 2}})), {});
  const auto variant = program->first();
  const std::string mixture = "1 bwd all_gather, 2 bwd reduce_scatter, 3 fwd all_gather, 1 fwd reduce_scatter";
  CHECK(testing::collectives_by_block(variant->graph, "ep") ==
        std::map<std::string, std::string>{{"", "2 fwd all_reduce"}, {"layers.1", mixture}, {"layers.2", mixture}});
}

TEST_CASE("DeepSeek-V3 over ep and cp trains as eager does") {
  expect_parity_on(divisible(like_v3()), {on({{"ep", 2}, {"cp", 2}}), exchanged(on({{"cp", 2}, {"ep", 2}}, 2)),
                                          on({{"dp_shard", 2}, {"cp", 2}, {"ep", 2}}, 3, {}, planned()),
                                          on({{"cp", 2}, {"ep", 2}}, 1, {.min_shard_numel = 1000})});
}

// A rank has a part of an expert's width, and all of its rows.
TEST_CASE("DeepSeek-V3 over ep and tp trains as eager does") {
  models::DeepSeekV3Args args = divisible(like_v3());
  args.load_balance_coeff = 0.01;
  expect_parity_on(args, {cut({{"ep", 2}, {"tp", 2}}), exchanged(cut({{"ep", 2}, {"tp", 2}})),
                          exchanged(cut({{"dp_shard", 2}, {"ep", 2}, {"tp", 2}}, {.sequence_parallel = true}, 3)),
                          with_room(1, cut({{"ep", 2}, {"tp", 2}}, {.sequence_parallel = true}, 2, {}, planned())),
                          exchanged(cut({{"dp_replicate", 2}, {"ep", 2}, {"tp", 2}}, {}, 1, {.zero_stage = 1})),
                          exchanged(cut({{"ep", 2}, {"tp", 4}}, {}, 1, {}, all_again())),
                          with_room(0.5, cut({{"ep", 4}, {"tp", 2}}, {}, 1, {}, all_again())),
                          cut({{"dp_shard", 2}, {"ep", 2}, {"tp", 2}}, {.loss_parallel = false}, 1, {}, planned()),
                          exchanged(cut({{"cp", 2}, {"ep", 2}, {"tp", 2}}, {.sequence_parallel = true}))});
}

// The most rows of a value of which a rank has its experts' alone.
int64_t most_rows(const ir::Graph& graph) {
  int64_t most = 0;
  for (const auto& op : graph.ops())
    for (const auto& result : op->results())
      if (result->type().placement_on("ep").kind == ir::Placement::Kind::Rows)
        most = std::max(most, result->type().dims.at(0).size);
  return most;
}

// A router of zeros, which does not train, takes the same expert for every token: one rank has all rows.
TEST_CASE("DeepSeek-V3 over ep trains as eager does where all tokens choose one expert") {
  models::DeepSeekV3Args args = like_v3();
  args.top_k = 1;
  args.load_balance_coeff = 1e-3;  // so that tokens are counted; nobody balances them here
  const auto make = [&] {
    models::DeepSeekV3 model(args);
    const at::NoGradGuard no_grad;
    for (const auto& parameter : model->named_parameters())
      if (parameter.key().find("router") != std::string::npos) parameter.value().zero_().requires_grad_(false);
    return model;
  };
  const testing::Reference reference = testing::eager(
      make, testing::loss_of, [](int64_t k) { return rows(k, 0, testing::kGlobalBatch); }, 20,
      [](torch::nn::Module&) {});
  size_t mixtures = 0;
  for (const auto& [name, counts] : reference.state)
    if (name.ends_with("tokens_per_expert")) {
      CHECK(counts.max().item<double>() == counts.sum().item<double>());
      CHECK(counts.sum().item<double>() > 0);
      ++mixtures;
    }
  CHECK(mixtures > 0);
  for (const testing::Case& c :
       {gathered(on({{"ep", 2}})), gathered(on({{"ep", 8}}, 1, {}, planned())), exchanged(on({{"ep", 2}})),
        exchanged(on({{"ep", 8}})), with_room(1, on({{"ep", 8}})), with_room(0.5, on({{"ep", 4}}, 1, {}, planned()))}) {
    const auto program = testing::expect_parity(make, testing::loss_of, rows, testing::kGlobalBatch, c, reference);
    if (c.expert.dispatch == DispatchMethod::Gather) continue;
    // Memory is that of the plan, whatever tokens choose: of all rows, or of those that the capacity has room for.
    const int64_t tokens = rows(0, 0, testing::kGlobalBatch)[0].numel();
    const auto even = static_cast<double>(tokens) / static_cast<double>(c.mesh.size("ep"));
    const double shares = c.expert.capacity > 0 ? c.expert.capacity : static_cast<double>(c.mesh.size("ep"));
    const auto variant = program->first();
    CHECK(static_cast<double>(most_rows(variant->graph)) == even * shares);
  }
}

TEST_CASE("DeepSeek-V2's small mixture over ep trains as eager does") {
  expect_parity_on(like_lite(), {on({{"ep", 2}}), on({{"dp_shard", 2}, {"ep", 4}}, 1, {}, planned())});
}

TEST_CASE("DeepSeek-V2's small mixture over tp trains as eager does") {
  expect_parity_on(divisible(like_lite()), {cut({{"tp", 2}}), cut({{"dp_shard", 2}, {"tp", 4}}, {}, 1, {}, planned())});
}

TEST_CASE(
    "DeepSeek-V2's large mixture over dp, tp, cp and ep trains as eager does: groups count by their best scores") {
  expect_parity_on(divisible(like_v2()), {on({{"dp_shard", 2}}, 2), cut({{"tp", 2}}, {.sequence_parallel = true}),
                                          on({{"cp", 2}}), exchanged(on({{"ep", 4}}, 1, {}, planned())),
                                          cut({{"dp_shard", 2}, {"ep", 2}, {"tp", 2}}, {}, 1, {}, all_again())});
}

}  // namespace mixture_parity_test
}  // namespace sfsdp
