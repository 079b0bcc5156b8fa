// SPDX-License-Identifier: BSD-3-Clause
// Every mesh of 2, 4 and 8 ranks with an axis tp, each with the options of a program pairwise: all train as one eager process does.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/plan/verify/layouts.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing/parity_torch.h"
#include "sfsdp/testing/tiny_models_torch.h"

namespace sfsdp {
namespace {

using testing::Reference;

// What varies, each by a number: model, mesh, cut rows, cut loss, ZeRO stage, what is computed again, micro-batches, executor.
constexpr std::array<int, 8> kChoices = {3, 10, 2, 2, 4, 3, 2, 2};
using Choice = std::array<int, kChoices.size()>;

// dp_replicate, dp_shard, tp
constexpr int64_t kMeshes[][3] = {{1, 1, 2}, {1, 1, 4}, {1, 2, 2}, {2, 1, 2}, {1, 1, 8},
                                  {1, 2, 4}, {2, 1, 4}, {1, 4, 2}, {2, 2, 2}, {4, 1, 2}};

using Pair = std::tuple<size_t, int, size_t, int>;

std::vector<Pair> pairs_of(const Choice& choice) {
  std::vector<Pair> pairs;
  for (size_t a = 0; a < choice.size(); ++a)
    for (size_t b = a + 1; b < choice.size(); ++b) pairs.emplace_back(a, choice[a], b, choice[b]);
  return pairs;
}

std::vector<Choice> all_choices() {
  std::vector<Choice> every = {{}};
  for (size_t f = 0; f < kChoices.size(); ++f) {
    std::vector<Choice> longer;
    for (const Choice& choice : every)
      for (int v = 0; v < kChoices[f]; ++v) {
        longer.push_back(choice);
        longer.back()[f] = v;
      }
    every = std::move(longer);
  }
  return every;
}

// Choices in which each pair of values stands, the next one always that with the most pairs that none before it has. With
// SFSDP_EVERY_MESH=1 in the environment all 5,760 are run (docs/benchmarks.md).
std::vector<Choice> pairwise() {
  const std::vector<Choice> every = all_choices();
  std::vector<Choice> chosen;
  std::set<Pair> seen;
  for (;;) {
    const Choice* best = nullptr;
    size_t most = 0;
    for (const Choice& choice : every) {
      size_t fresh = 0;
      for (const Pair& pair : pairs_of(choice)) fresh += seen.contains(pair) ? 0 : 1;
      if (fresh <= most) continue;
      most = fresh;
      best = &choice;
    }
    if (!best) return chosen;
    chosen.push_back(*best);
    for (const Pair& pair : pairs_of(*best)) seen.insert(pair);
  }
}

constexpr int64_t kVocabulary = 32, kSteps = 3;

// Ids over all of the vocabulary.
Batch words(int64_t step, int64_t first, int64_t rows) {
  constexpr int64_t kLength = 12;
  const at::Tensor ids = at::empty({rows, kLength + 1}, at::kLong);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i <= kLength; ++i)
      ids.mutable_data_ptr<int64_t>()[r * (kLength + 1) + i] =
          (7 * step + 11 * (first + r) + i * i + 5 * i) % kVocabulary;
  return {ids.narrow(1, 0, kLength).contiguous(), ids.narrow(1, 1, kLength).contiguous()};
}

models::Llama3Args llama_args() {
  models::Llama3Args args = testing::tiny_llama();
  args.vocab_size = kVocabulary;
  args.hidden_dim = 40;
  args.n_heads = args.head_dim = 8;
  return args;
}
const auto kMakeLlama = [] { return models::Llama3(llama_args()); };
// Qwen3's: a norm on each head, a tied table.
const auto kMakeQwen = [] {
  models::Llama3Args args = llama_args();
  args.qk_norm = args.tied = true;
  return models::Llama3(args);
};
const auto kMakeGpt = [] {
  models::GptArgs args = testing::tiny_gpt();
  args.vocab_size = kVocabulary;
  args.dim = 24;
  return models::Gpt(args);
};

const std::vector<TensorParallelRule> kLlamaRules = {
    {"*.wq|wk|wv|w1|w3", Shard(0)}, {"*.wo|w2", Shard(1)}, {"tok_embeddings|output", Shard(0)}};
const std::vector<TensorParallelRule> kGptRules = {
    {"*.mlp.c_fc", Shard(0)}, {"*.mlp.c_proj", Shard(1)}, {"wte", Shard(0)}};

testing::Case case_of(const Choice& choice, const std::vector<TensorParallelRule>& rules) {
  const auto [model, mesh, rows, loss, stage, remat, micro_batches, executor] = choice;
  const int64_t* sizes = kMeshes[mesh];
  testing::Case c = {init_device_mesh({{"dp_replicate", sizes[0]}, {"dp_shard", sizes[1]}, {"tp", sizes[2]}}),
                     tensor_parallel(rules, {.sequence_parallel = rows == 1, .loss_parallel = loss == 1}),
                     {.zero_stage = stage},
                     micro_batches == 1 ? 3 : 1};
  constexpr passes::RematMode kRemat[] = {passes::RematMode::None, passes::RematMode::Op, passes::RematMode::Full};
  c.compile.pipeline.remat.mode = kRemat[remat];
  c.compile.executor = executor == 1 ? ExecutorKind::Planned : ExecutorKind::Reference;
  return c;
}

template <class Make>
void check_all(int model, Make make, std::vector<TensorParallelRule> rules) {
  const Reference reference = testing::eager(
      make, testing::loss_of, [](int64_t k) { return words(k, 0, testing::kGlobalBatch); }, kSteps);
  for (const Choice& choice : std::getenv("SFSDP_EVERY_MESH") ? all_choices() : pairwise()) {
    if (choice[0] != model) continue;
    std::string of;
    for (const int value : choice) of += concat(of.empty() ? "" : " ", value);
    CAPTURE(of);
    const auto program =
        testing::expect_parity(make, testing::loss_of, words, testing::kGlobalBatch, case_of(choice, rules), reference);
    const auto variant = program->first();
    CHECK(plan::verify_layouts(variant->graph) == "");
  }
}

TEST_CASE("meshes with tp, options pairwise: Llama") { check_all(0, kMakeLlama, kLlamaRules); }
TEST_CASE("meshes with tp, options pairwise: Qwen3, tied") {
  std::vector<TensorParallelRule> rules = kLlamaRules;
  rules.back().pattern = "tok_embeddings";
  check_all(1, kMakeQwen, rules);
}
TEST_CASE("meshes with tp, options pairwise: GPT") { check_all(2, kMakeGpt, kGptRules); }

TEST_CASE("meshes with tp: each pair of choices stands in one of them") {
  std::set<Pair> seen;
  const std::vector<Choice> all = pairwise();
  for (const Choice& choice : all)
    for (const Pair& pair : pairs_of(choice)) seen.insert(pair);
  size_t expected = 0;
  for (size_t a = 0; a < kChoices.size(); ++a)
    for (size_t b = a + 1; b < kChoices.size(); ++b) expected += static_cast<size_t>(kChoices[a] * kChoices[b]);
  CHECK(seen.size() == expected);
  CHECK(all.size() < 60);
}

}  // namespace
}  // namespace sfsdp
