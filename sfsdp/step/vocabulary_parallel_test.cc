// SPDX-License-Identifier: BSD-3-Clause
// Training with a vocabulary that the axis tp cuts, tables, head and loss, on ranks that are threads, equals one eager process.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/plan/verify/layouts.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing/parity_torch.h"
#include "sfsdp/testing/tiny_models_torch.h"

namespace sfsdp {
namespace vocabulary_parallel_test {

using testing::Case, testing::Reference, testing::eager, testing::expect_parity;

constexpr int64_t kVocabulary = 32;

// Ids over all of the vocabulary; of each row two targets are ignored, so that every micro-batch counts as many.
Batch words(int64_t step, int64_t first, int64_t rows) {
  constexpr int64_t kLength = 12;
  const at::Tensor ids = at::empty({rows, kLength}, at::kLong), targets = at::empty_like(ids);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < kLength; ++i) {
      const auto id = [&](int64_t at) { return (7 * step + 11 * (first + r) + at * at + 5 * at) % kVocabulary; };
      ids.mutable_data_ptr<int64_t>()[r * kLength + i] = id(i);
      targets.mutable_data_ptr<int64_t>()[r * kLength + i] = (i + first + r) % 6 == 0 ? -100 : id(i + 1);
    }
  return {ids, targets};
}

const auto kMakeLlama = [] {
  models::Llama3Args args = testing::tiny_llama();
  args.vocab_size = kVocabulary;
  args.hidden_dim = 32;
  return models::Llama3(args);
};
const auto kMakeGpt = [] {
  models::GptArgs args = testing::tiny_gpt();
  args.vocab_size = kVocabulary;
  return models::Gpt(args);
};

const std::vector<TensorParallelRule> kLlamaRules = {
    {"*.wq|wk|wv|w1|w3", Shard(0)}, {"*.wo|w2", Shard(1)}, {"tok_embeddings|output", Shard(0)}};
const TensorParallel kLlama = tensor_parallel(kLlamaRules),
                     kBySequence = tensor_parallel(kLlamaRules, {.sequence_parallel = true});
const TensorParallel kWords = tensor_parallel({{"tok_embeddings|output", Shard(0)}});

template <class Make>
Reference reference_of(Make make, int64_t steps) {
  return eager(
      make, testing::loss_of, [](int64_t k) { return words(k, 0, testing::kGlobalBatch); }, steps);
}
template <class Make>
void expect_trains(Make make, const Case& c, const Reference& reference) {
  const auto program = expect_parity(make, testing::loss_of, words, testing::kGlobalBatch, c, reference);
  const auto variant = program->first();
  CHECK(plan::verify_layouts(variant->graph) == "");
}

TEST_CASE("a Llama of which tp cuts all, vocabulary too, trains as eager does, with ignored targets") {
  const Reference reference = reference_of(kMakeLlama, 20);
  const DeviceMesh mixed = init_device_mesh({{"dp_shard", 2}, {"tp", 2}});
  for (const TensorParallel& rules : {kLlama, kBySequence}) {
    CAPTURE(rules.options.sequence_parallel);
    expect_trains(kMakeLlama, {init_device_mesh({{"tp", 2}}), rules}, reference);
    expect_trains(kMakeLlama, {init_device_mesh({{"tp", 4}}), rules}, reference);
    expect_trains(kMakeLlama, {mixed, rules, {}, 3}, reference);
  }
  expect_trains(kMakeLlama, {mixed, kWords}, reference);
  CompileOptions all_again;
  all_again.pipeline.remat.mode = passes::RematMode::Full;
  expect_trains(kMakeLlama, {mixed, kLlama, {}, 3, all_again}, reference);
  expect_trains(kMakeLlama, {mixed, tensor_parallel(kLlamaRules, {.loss_parallel = false})}, reference);
}

TEST_CASE("a GPT whose table is its head trains as eager does where tp cuts both as one") {
  const Reference reference = reference_of(kMakeGpt, 20);
  for (const bool by_sequence : {false, true}) {
    CAPTURE(by_sequence);
    const TensorParallel rules = tensor_parallel({{"wte", Shard(0)}}, {.sequence_parallel = by_sequence});
    expect_trains(kMakeGpt, {init_device_mesh({{"tp", 2}}), rules}, reference);
    expect_trains(kMakeGpt, {init_device_mesh({{"dp_shard", 2}, {"tp", 2}}), rules, {}, 3}, reference);
    expect_trains(kMakeGpt, {init_device_mesh({{"tp", 4}}), rules}, reference);
  }
}

// Ranks and micro-batches differ in how many targets count.
Batch uneven(int64_t step, int64_t first, int64_t rows) {
  Batch batch = words(step, first, rows);
  for (int64_t r = 0; r < rows; ++r) batch[1][r].narrow(0, 0, (5 * (first + r)) % 11).fill_(-100);
  return batch;
}
const auto kCountedLoss = [](auto& model, const Batch& b) {
  const models::CountedLoss loss = models::counted_cross_entropy(model->forward(b[0]), b[1]);
  return SumCount{loss.sum, loss.count};
};

TEST_CASE("a loss that is added up and counted is that of one rank, whichever rank has how many targets") {
  const auto train = [&](const DeviceMesh& mesh, const TensorParallel& rules, int64_t micro_batches) {
    const Strategy strategy = data_parallel(mesh, {}, rules);
    const int64_t data = strategy.data_ranks(), rows = testing::kGlobalBatch / data / micro_batches;
    CompileOptions options;
    options.micro_batches = micro_batches;
    const auto program =
        compile_program(meta_init(kMakeLlama), kCountedLoss, testing::kAdamW, uneven(0, 0, rows), strategy, options);
    return testing::train_on_ranks(program, 4, [&](int64_t step, int64_t rank) {
      const int64_t place = mesh.group_rank(rank, strategy.data_axes());
      std::vector<Batch> batches;
      for (int64_t m = 0; m < micro_batches; ++m) batches.push_back(uneven(step, (m * data + place) * rows, rows));
      return batches;
    });
  };
  const testing::Trained one = train(init_device_mesh({{"dp_shard", 1}}), {}, 1);
  for (const TensorParallel& rules : {kLlama, kBySequence})
    for (const int64_t micro_batches : {1, 3}) {
      CAPTURE(micro_batches);
      const testing::Trained got = train(init_device_mesh({{"dp_shard", 2}, {"tp", 2}}), rules, micro_batches);
      for (size_t k = 0; k < one.results.size(); ++k) {
        CHECK(std::abs(got.results[k].loss - one.results[k].loss) <= 1e-6 * one.results[k].loss);
        CHECK(std::abs(got.results[k].grad_norm - one.results[k].grad_norm) <= 5e-6 * one.results[k].grad_norm);
      }
    }
}

// Weights are cast to bfloat16 as those of one rank are; what differs are roundings, of sums that ranks share.
TEST_CASE("in bfloat16 a vocabulary in parts trains as one rank does") {
  DataParallelOptions half;
  half.mixed_precision = {ir::DType::bf16, ir::DType::f32};
  const auto train = [&](const DeviceMesh& mesh, const TensorParallel& rules) {
    const Strategy strategy = data_parallel(mesh, half, rules);
    const int64_t rows = testing::kGlobalBatch / strategy.data_ranks();
    const auto program =
        compile_program(meta_init(kMakeLlama), testing::loss_of, testing::kAdamW, words(0, 0, rows), strategy, {});
    return testing::train_on_ranks(program, 4, [&](int64_t step, int64_t rank) -> std::vector<Batch> {
      return {words(step, mesh.group_rank(rank, strategy.data_axes()) * rows, rows)};
    });
  };
  const testing::Trained one = train(init_device_mesh({{"dp_shard", 1}}), {});
  for (const DeviceMesh& mesh : {init_device_mesh({{"tp", 2}}), init_device_mesh({{"dp_shard", 2}, {"tp", 2}})})
    for (const TensorParallel& rules : {kLlama, kBySequence}) {
      CAPTURE(to_string(mesh));
      const testing::Trained got = train(mesh, rules);
      for (size_t k = 0; k < one.results.size(); ++k)
        CHECK(got.results[k].loss == doctest::Approx(one.results[k].loss).epsilon(1e-3));
    }
}

// The collectives over tp outside of blocks, by section and kind, with the elements that a rank receives.
std::map<std::string, int> collectives_of_vocabulary(const TensorParallel& rules) {
  const auto program = compile_program(meta_init(kMakeLlama), testing::loss_of, testing::kAdamW, words(0, 0, 4),
                                       data_parallel(init_device_mesh({{"dp_shard", 2}, {"tp", 2}}), {}, rules), {});
  std::map<std::string, int> counts;
  const auto variant = program->first();
  for (const auto& op : variant->graph.ops()) {
    const auto axes = ir::is_collective(*op) ? ir::axes_of(*op) : std::nullopt;
    if (axes != std::vector<std::string>{"tp"} || !ir::is_repeated(op->section)) continue;
    if (op->module_path.starts_with("layers.")) continue;
    const char* section = op->section == ir::Section::Bwd ? "bwd " : "fwd ";
    ir::Type type = op->result()->type();
    ++counts[concat(section, ir::collective_kind(*op), ' ', ir::Type::tensor(type.dtype, type.shape()))];
  }
  return counts;
}

using Counts = std::map<std::string, int>;

TEST_CASE("a vocabulary in parts costs an all_reduce of what is looked up, 12 bytes a token, and a gradient's sum") {
  CHECK(collectives_of_vocabulary(kLlama) == Counts{{"fwd all_reduce f32[4, 12, 24]", 1},
                                                    {"fwd all_gather f32[6, 48]", 1},
                                                    {"bwd all_reduce f32[4, 12, 24]", 1}});
}

TEST_CASE("with sequence parallelism the sums of a vocabulary are reduce_scatters, and gathers stand before products") {
  CHECK(collectives_of_vocabulary(kBySequence) ==
        Counts{{"fwd reduce_scatter f32[2, 12, 24]", 1},
               {"fwd all_gather f32[4, 12, 24]", 1},  // before the head
               {"fwd all_gather f32[6, 48]", 1},
               {"bwd reduce_scatter f32[2, 12, 24]", 1},
               {"bwd all_gather f32[4, 12, 24]", 1},  // of the table's gradient
               {"bwd all_reduce f32[192]", 1}});      // of all norms', 64 of each bucket
}

}  // namespace vocabulary_parallel_test
}  // namespace sfsdp
