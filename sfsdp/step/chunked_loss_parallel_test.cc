// SPDX-License-Identifier: BSD-3-Clause
// Training with the loss in chunks of tokens beside model axes, on ranks that are threads, equals one eager process that has all logits.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/models/deepseek_v3/deepseek_v3.h"
#include "sfsdp/plan/verify/layouts.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing/parity_torch.h"
#include "sfsdp/testing/tiny_models_torch.h"

namespace sfsdp {
namespace {

using testing::Case, testing::Reference, testing::kGlobalBatch;

// Two targets of each row are ignored: ranks along cp count other numbers of them, micro-batches as many.
Batch words(int64_t step, int64_t first, int64_t rows) {
  Batch batch = testing::tokens(step, first, rows);
  for (int64_t r = 0; r < rows; ++r)
    for (const int64_t at : {(first + r) % 6, (first + r) % 6 + 1}) batch[1][r][at] = -100;
  return batch;
}

const std::vector<TensorParallelRule> kRules = {{"*.wq|wk|wv", Shard(0)},
                                                {"*.wo", Shard(1)},
                                                {"*.w1|w3", Shard(0)},
                                                {"*.w2", Shard(1)},
                                                {"tok_embeddings|output", Shard(0)}};

Case on(std::vector<MeshAxis> axes, int64_t chunks, int64_t micro_batches = 1, TensorParallelOptions tensor = {}) {
  Case c = {init_device_mesh(std::move(axes)), {}};
  c.micro_batches = micro_batches;
  c.compile.pipeline.loss_chunks = chunks;
  for (const MeshAxis& axis : c.mesh.axes())
    if (axis.name == "tp") c.rules = tensor_parallel(kRules, tensor);
  return c;
}

// Rows of logits that are there at once.
int64_t rows_of_logits(const ir::Graph& graph) {
  int64_t most = 0;
  for (const auto& op : graph.ops())
    if (op->is("cross_entropy", "cross_entropy_parts", "cross_entropy_backward"))
      most = std::max(most, op->operands[op->is("cross_entropy_backward") ? 1 : 0]->type().dims[0].size);
  return most;
}

template <class Make>
void expect_trains(Make make, const std::vector<Case>& cases, int64_t steps = 4) {
  const Reference reference = testing::eager(
      make, testing::loss_of, [](int64_t k) { return words(k, 0, kGlobalBatch); }, steps);
  for (const Case& c : cases) {
    const int64_t chunks = c.compile.pipeline.loss_chunks;
    CAPTURE(chunks);
    CAPTURE(c.rules.options.sequence_parallel);
    CAPTURE(c.rules.options.loss_parallel);
    const auto program = testing::expect_parity(make, testing::loss_of, words, kGlobalBatch, c, reference);
    const auto variant = program->first();
    CHECK(plan::verify_layouts(variant->graph) == "");
    const Strategy strategy = data_parallel(c.mesh, c.options, c.rules, c.context, c.expert);
    int64_t tokens = kGlobalBatch / strategy.data_ranks() / c.micro_batches * 12;
    for (const char* axis : {"cp", "ep"}) tokens /= strategy.axis_size(axis);
    CHECK(rows_of_logits(variant->graph) == (tokens + chunks - 1) / chunks);
  }
}

const TensorParallelOptions kBySequence = {.sequence_parallel = true}, kGathered = {.loss_parallel = false};

// 29 words, which 2 and 4 ranks do not divide.
TEST_CASE("chunks of a loss over tp: a Llama whose vocabulary is padded trains as eager does") {
  Case again = on({{"dp_shard", 2}, {"tp", 2}}, 2, 1, kBySequence);
  again.compile.pipeline.remat.mode = passes::RematMode::Full;
  Case by_op = on({{"dp_shard", 2}, {"tp", 2}}, 3);
  by_op.compile.executor = ExecutorKind::Reference;
  Case stage = on({{"dp_shard", 2}, {"tp", 2}}, 2, 2);
  stage.options.zero_stage = 1;
  expect_trains(testing::make_llama, {on({{"tp", 2}}, 2), on({{"tp", 2}}, 5, 1, kBySequence),
                                      on({{"dp_shard", 2}, {"tp", 2}}, 3, 3, kBySequence), again, by_op, stage});
}

const auto kMakeLlama32 = [] {
  models::Llama3Args args = testing::tiny_llama();
  args.vocab_size = 32;
  args.hidden_dim = 32;
  return models::Llama3(args);
};

TEST_CASE("chunks of a loss over tp: a vocabulary that is divided, its logits gathered for the loss or not") {
  expect_trains(kMakeLlama32,
                {on({{"tp", 4}}, 3, 1, kBySequence), on({{"tp", 2}}, 3, 1, kGathered),
                 on({{"dp_shard", 2}, {"tp", 2}}, 2, 1, {.sequence_parallel = true, .loss_parallel = false})});
}

TEST_CASE("chunks of a loss over cp: each rank's own rows, by gathers, exchanges and in a ring") {
  std::vector<Case> cases = {on({{"cp", 2}}, 2), on({{"dp_shard", 2}, {"cp", 2}}, 3, 3), on({{"cp", 3}}, 7)};
  for (const RotateMethod method : {RotateMethod::AllToAll, RotateMethod::Ring}) {
    cases.push_back(on({{"cp", 2}}, 3));
    cases.back().context.rotate_method = method;
  }
  cases.push_back(on({{"cp", 2}}, 3));
  cases.back().context.load_balance = false;
  cases.push_back(on({{"dp_shard", 2}, {"cp", 2}}, 2, 2));
  cases.back().options.zero_stage = 1;
  expect_trains(testing::make_llama, cases);
  expect_trains(kMakeLlama32, {on({{"cp", 2}, {"tp", 2}}, 3, 1, kBySequence)});
}

TEST_CASE("chunks of a loss: a GPT whose table is its head, over tp and cp") {
  Case tied = on({{"dp_shard", 2}, {"tp", 2}}, 3);
  tied.rules = tensor_parallel({{"wte", Shard(0)}});
  expect_trains(testing::make_gpt, {tied, on({{"cp", 2}}, 2)});
}

TEST_CASE("chunks of a loss over ep: each rank's samples, beside cp and tp") {
  const auto make = [] {
    models::DeepSeekV3Args args;
    args.dim = 24;
    args.inter_dim = 40;
    args.moe_inter_dim = 16;
    args.n_layers = 2;
    args.n_heads = 4;
    args.vocab_size = 32;
    args.q_lora_rank = 12;
    args.kv_lora_rank = 10;
    args.qk_nope_head_dim = 6;
    args.qk_rope_head_dim = 4;
    args.v_head_dim = 5;
    args.num_experts = 8;
    args.num_shared_experts = 1;
    args.top_k = 3;
    args.load_balance_coeff = 0;
    return models::DeepSeekV3(args);
  };
  Case both = on({{"ep", 2}, {"tp", 2}}, 2);
  both.rules =
      tensor_parallel({{"*.experts.w1|w3", Shard(1)}, {"*.experts.w2", Shard(2)}, {"tok_embeddings|output", Shard(0)}});
  expect_trains(make,
                {on({{"ep", 2}}, 3), on({{"dp_shard", 2}, {"ep", 2}}, 2, 3), on({{"cp", 2}, {"ep", 2}}, 3), both});
}

// docs/parallel.md: 12 bytes a token, in as many all_gathers as there are chunks.
TEST_CASE("chunks of a loss over tp gather three numbers a token for each chunk, and send nothing else") {
  const auto counts = [](int64_t chunks) {
    const Case c = on({{"tp", 2}}, chunks);
    const auto program = compile_program(meta_init(kMakeLlama32), testing::loss_of, testing::kAdamW, words(0, 0, 4),
                                         data_parallel(c.mesh, {}, c.rules), c.compile);
    std::pair<int64_t, int64_t> gathers_and_bytes;
    int64_t others = 0;
    const auto variant = program->first();
    for (const auto& op : variant->graph.ops()) {
      if (ir::collective_kind(*op) == "all_gather") {
        ++gathers_and_bytes.first;
        gathers_and_bytes.second += op->operands[0]->type().bytes();
      } else if (ir::is_collective(*op)) {
        ++others;
      }
    }
    return std::pair(gathers_and_bytes, others);
  };
  const auto [one, others] = counts(1);
  CHECK(one == std::pair<int64_t, int64_t>{1, 12 * 4 * 12});
  for (const int64_t chunks : {2, 5}) {
    const auto [gathers, same] = counts(chunks);
    CHECK(gathers == std::pair<int64_t, int64_t>{chunks, 12 * 4 * 12});
    CHECK(same == others);
  }
}

TEST_CASE("chunks of a loss that cannot be beside a model axis are refused by name, with the cure") {
  const auto refused = [](const Case& c) {
    compile_program(meta_init(kMakeLlama32), testing::loss_of, testing::kAdamW, words(0, 0, 4),
                    data_parallel(c.mesh, {}, c.rules, c.context), c.compile);
  };
  CHECK_THROWS_WITH_AS(refused(on({{"cp", 2}}, 25)),
                       doctest::Contains("cross_entropy at output is of 24 rows on a rank\n  expected a linear layer"),
                       UserError);
}

}  // namespace
}  // namespace sfsdp
