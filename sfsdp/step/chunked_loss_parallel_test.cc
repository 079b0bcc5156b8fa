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
namespace chunked_loss_parallel_test {

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
void expect_trains(Make make, const std::vector<Case>& cases, int64_t steps = 20) {
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

// Ranks and micro-batches differ in how many targets count.
Batch uneven(int64_t step, int64_t first, int64_t rows) {
  Batch batch = testing::tokens(step, first, rows);
  for (int64_t r = 0; r < rows; ++r) batch[1][r].narrow(0, 0, (5 * (first + r)) % 11).fill_(-100);
  return batch;
}
const auto kCountedLoss = [](auto& model, const Batch& b) {
  const models::CountedLoss loss = models::counted_cross_entropy(model->forward(b[0]), b[1]);
  return SumCount{loss.sum, loss.count};
};

template <class Loss>
std::vector<StepResult> trained(const Case& c, Loss loss) {
  const Strategy strategy = data_parallel(c.mesh, c.options, c.rules, c.context);
  const int64_t data = strategy.data_ranks(), rows = kGlobalBatch / data / c.micro_batches;
  CompileOptions options = c.compile;
  options.micro_batches = c.micro_batches;
  const auto program =
      compile_program(meta_init(kMakeLlama32), loss, testing::kAdamW, uneven(0, 0, rows), strategy, options);
  return testing::train_on_ranks(program, 4,
                                 [&](int64_t step, int64_t rank) {
                                   const int64_t place = c.mesh.group_rank(rank, strategy.data_axes());
                                   std::vector<Batch> batches;
                                   for (int64_t m = 0; m < c.micro_batches; ++m)
                                     batches.push_back(uneven(step, (m * data + place) * rows, rows));
                                   return batches;
                                 })
      .results;
}

TEST_CASE("chunks of a loss that is added up and counted: that of one rank, whichever rank has how many targets") {
  const std::vector<StepResult> one = trained(on({{"dp_shard", 1}}, 1), kCountedLoss);
  for (const Case& c : {on({{"dp_shard", 2}, {"tp", 2}}, 3, 3, kBySequence), on({{"dp_shard", 2}, {"cp", 2}}, 2, 2)}) {
    CAPTURE(to_string(c.mesh));
    const std::vector<StepResult> got = trained(c, kCountedLoss);
    for (size_t k = 0; k < one.size(); ++k) {
      CHECK(std::abs(got[k].loss - one[k].loss) <= 1e-6 * one[k].loss);
      CHECK(std::abs(got[k].grad_norm - one[k].grad_norm) <= 5e-6 * one[k].grad_norm);
    }
  }
}

// Roundings of sums that ranks share differ, as without chunks (vocabulary_parallel_test.cc).
TEST_CASE("chunks of a loss in bfloat16 train as one rank does") {
  const auto half = [](Case c) {
    c.options.mixed_precision = {ir::DType::bf16, ir::DType::f32};
    return c;
  };
  const std::vector<StepResult> one = trained(half(on({{"dp_shard", 1}}, 1)), testing::loss_of);
  for (const Case& c : {on({{"dp_shard", 1}, {"tp", 2}}, 3, 1, kBySequence), on({{"cp", 2}}, 2)}) {
    CAPTURE(to_string(c.mesh));
    const std::vector<StepResult> got = trained(half(c), testing::loss_of);
    for (size_t k = 0; k < one.size(); ++k) CHECK(got[k].loss == doctest::Approx(one[k].loss).epsilon(1e-3));
  }
}

// docs/model_axes.md: 12 bytes a token, in as many all_gathers as there are chunks.
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

}  // namespace chunked_loss_parallel_test
}  // namespace sfsdp
