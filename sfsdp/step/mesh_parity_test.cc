// SPDX-License-Identifier: BSD-3-Clause
// Every mesh of 2, 4 and 8 ranks with an axis tp or cp, each with the options of a program pairwise: all train as one eager process
// does, for 20 steps. With SFSDP_EVERY_MESH=1 in the environment each mesh and model has programs of its own, pairwise (docs/benchmarks.md).
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/plan/verify/layouts.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing/pairwise.h"
#include "sfsdp/testing/parity_torch.h"
#include "sfsdp/testing/tiny_models_torch.h"

namespace sfsdp {
namespace mesh_parity_test {

using testing::Reference;

// What varies, each by a number: model, mesh, cut rows, cut loss, ZeRO stage, what is computed again, micro-batches, executor.
constexpr testing::Choice<8> kTensor = {3, 10, 2, 2, 4, 3, 2, 2};

// dp_replicate, dp_shard, tp
constexpr int64_t kTensorMeshes[][3] = {{1, 1, 2}, {1, 1, 4}, {1, 2, 2}, {2, 1, 2}, {1, 1, 8},
                                        {1, 2, 4}, {2, 1, 4}, {1, 4, 2}, {2, 2, 2}, {4, 1, 2}};

// Model, mesh, what attention exchanges, order of the sequence, cut rows, cut loss, ZeRO stage, what is computed again, micro-batches,
// executor.
constexpr testing::Choice<10> kContext = {3, 15, 4, 2, 2, 2, 4, 3, 2, 2};

// dp_replicate, dp_shard, cp, tp
constexpr int64_t kContextMeshes[][4] = {{1, 1, 2, 1}, {1, 1, 4, 1}, {1, 2, 2, 1}, {2, 1, 2, 1}, {1, 1, 2, 2},
                                         {1, 1, 8, 1}, {1, 2, 4, 1}, {2, 2, 2, 1}, {1, 4, 2, 1}, {1, 1, 4, 2},
                                         {1, 2, 2, 2}, {2, 1, 2, 2}, {2, 1, 4, 1}, {4, 1, 2, 1}, {1, 1, 2, 4}};
constexpr int64_t kContextKeyHeads = 4;  // of all models of meshes with cp

constexpr int64_t kVocabulary = 32, kSteps = 20;

// Ids over all of the vocabulary.
Batch words(int64_t step, int64_t first, int64_t rows) {
  constexpr int64_t kLength = 16;
  const at::Tensor ids = at::empty({rows, kLength + 1}, at::kLong);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i <= kLength; ++i)
      ids.mutable_data_ptr<int64_t>()[r * (kLength + 1) + i] =
          (7 * step + 11 * (first + r) + i * i + 5 * i) % kVocabulary;
  return {ids.narrow(1, 0, kLength).contiguous(), ids.narrow(1, 1, kLength).contiguous()};
}

models::Llama3Args llama_args(int64_t key_heads) {
  models::Llama3Args args = testing::tiny_llama();
  args.vocab_size = kVocabulary;
  args.hidden_dim = 40;
  args.n_heads = args.head_dim = 8;
  args.n_kv_heads = key_heads;
  return args;
}
auto llama_of(int64_t key_heads) {
  return [key_heads] { return models::Llama3(llama_args(key_heads)); };
}
// Qwen3's: a norm on each head, a tied table.
auto qwen_of(int64_t key_heads) {
  return [key_heads] {
    models::Llama3Args args = llama_args(key_heads);
    args.qk_norm = args.tied = true;
    return models::Llama3(args);
  };
}
const auto kMakeGpt = [] {
  models::GptArgs args = testing::tiny_gpt();
  args.vocab_size = kVocabulary;
  args.dim = 24;
  return models::Gpt(args);
};

const std::vector<TensorParallelRule> kLlamaRules = {
    {"*.wq|wk|wv|w1|w3", Shard(0)}, {"*.wo|w2", Shard(1)}, {"tok_embeddings|output", Shard(0)}};
const std::vector<TensorParallelRule> kGptRules = {
    {"*.c_attn", Shard(0, {.blocks = 3})}, {"*.c_fc", Shard(0)}, {"*.c_proj", Shard(1)}, {"wte", Shard(0)}};

// What both kinds of choices have at their ends.
void set_options(testing::Case& c, int stage, int remat, int micro_batches, int executor) {
  c.options.zero_stage = stage;
  c.micro_batches = micro_batches == 1 ? 3 : 1;
  constexpr passes::RematMode kRemat[] = {passes::RematMode::None, passes::RematMode::Op, passes::RematMode::Full};
  c.compile.pipeline.remat.mode = kRemat[remat];
  c.compile.executor = executor == 1 ? ExecutorKind::Planned : ExecutorKind::Reference;
}

using Rules = std::vector<TensorParallelRule>;

testing::Case tensor_case(const testing::Choice<8>& choice, const Rules& rules) {
  const auto [model, mesh, rows, loss, stage, remat, micro_batches, executor] = choice;
  const int64_t* sizes = kTensorMeshes[mesh];
  testing::Case c = {init_device_mesh({{"dp_replicate", sizes[0]}, {"dp_shard", sizes[1]}, {"tp", sizes[2]}}),
                     tensor_parallel(rules, {.sequence_parallel = rows == 1, .loss_parallel = loss == 1})};
  set_options(c, stage, remat, micro_batches, executor);
  return c;
}

constexpr RotateMethod kMethods[] = {RotateMethod::AllGather, RotateMethod::AllToAll, RotateMethod::Ring,
                                     RotateMethod::Auto};

testing::Case context_case(const testing::Choice<10>& choice, const Rules& rules) {
  const auto [model, mesh, method, order, rows, loss, stage, remat, micro_batches, executor] = choice;
  const int64_t* sizes = kContextMeshes[mesh];
  testing::Case c = {
      init_device_mesh({{"dp_replicate", sizes[0]}, {"dp_shard", sizes[1]}, {"cp", sizes[2]}, {"tp", sizes[3]}}),
      tensor_parallel(rules, {.sequence_parallel = rows == 1, .loss_parallel = loss == 1})};
  c.context = {.load_balance = order == 1, .rotate_method = kMethods[method]};
  set_options(c, stage, remat, micro_batches, executor);
  return c;
}

// An option that changes nothing on a mesh is 0 there, so that a pair counts only where both are in force.

// ZeRO stages are of shards.
bool has_effect(const testing::Choice<8>& choice) { return kTensorMeshes[choice[1]][1] > 1 || choice[4] == 0; }

// Rows and the loss are cut by tp; all-to-all takes whole heads, which cp and tp have to divide.
bool has_effect(const testing::Choice<10>& choice) {
  const int64_t *sizes = kContextMeshes[choice[1]], cp = sizes[2], tp = sizes[3];
  if (kMethods[choice[2]] == RotateMethod::AllToAll && kContextKeyHeads % (cp * tp) != 0) return false;
  return tp > 1 || (choice[4] == 0 && choice[5] == 0);
}

// Those in force, of one model and mesh or, -1, of any.
template <size_t N>
std::vector<testing::Choice<N>> choices_of(const testing::Choice<N>& counts, int model = -1, int mesh = -1) {
  std::vector<testing::Choice<N>> wanted;
  for (const auto& choice : testing::all_choices(counts))
    if ((model < 0 || choice[0] == model) && (mesh < 0 || choice[1] == mesh) && has_effect(choice))
      wanted.push_back(choice);
  return wanted;
}

// The programs of a model where each pair stands in one program of any model and mesh, or in one of each mesh.
template <size_t N>
std::vector<testing::Choice<N>> programs_of(int model, const testing::Choice<N>& counts, bool of_each_mesh) {
  std::vector<testing::Choice<N>> programs;
  if (!of_each_mesh) {
    for (const auto& choice : testing::pairwise(choices_of(counts)))
      if (choice[0] == model) programs.push_back(choice);
    return programs;
  }
  for (int mesh = 0; mesh < counts[1]; ++mesh)
    for (const auto& choice : testing::pairwise(choices_of(counts, model, mesh))) programs.push_back(choice);
  return programs;
}

template <class Make, size_t N>
void check_all(int model, Make make, const Rules& rules, const testing::Choice<N>& counts,
               testing::Case (*case_of)(const testing::Choice<N>&, const Rules&)) {
  const Reference reference = testing::eager(
      make, testing::loss_of, [](int64_t k) { return words(k, 0, testing::kGlobalBatch); }, kSteps);
  for (const auto& choice : programs_of(model, counts, std::getenv("SFSDP_EVERY_MESH") != nullptr)) {
    std::string of;
    for (const int value : choice) of += concat(of.empty() ? "" : " ", value);
    CAPTURE(of);
    const auto program =
        testing::expect_parity(make, testing::loss_of, words, testing::kGlobalBatch, case_of(choice, rules), reference);
    const auto variant = program->first();
    CHECK(plan::verify_layouts(variant->graph) == "");
  }
}

Rules tied_rules() {
  Rules rules = kLlamaRules;
  rules.back().pattern = "tok_embeddings";
  return rules;
}

TEST_CASE("meshes with tp, options pairwise: Llama") { check_all(0, llama_of(2), kLlamaRules, kTensor, tensor_case); }
TEST_CASE("meshes with tp, options pairwise: Qwen3, tied") {
  check_all(1, qwen_of(2), tied_rules(), kTensor, tensor_case);
}
TEST_CASE("meshes with tp, options pairwise: GPT") { check_all(2, kMakeGpt, kGptRules, kTensor, tensor_case); }

TEST_CASE("meshes with cp, options pairwise: Llama") {
  check_all(0, llama_of(kContextKeyHeads), kLlamaRules, kContext, context_case);
}
TEST_CASE("meshes with cp, options pairwise: Qwen3, tied") {
  check_all(1, qwen_of(kContextKeyHeads), tied_rules(), kContext, context_case);
}
TEST_CASE("meshes with cp, options pairwise: GPT") { check_all(2, kMakeGpt, kGptRules, kContext, context_case); }

TEST_CASE("all-to-all beside tp 4 is refused: 4 heads of keys are not for 8 ranks") {
  const auto compile_on = [](RotateMethod method) {
    const DeviceMesh mesh = init_device_mesh({{"cp", 2}, {"tp", 4}});
    compile_program(meta_init(llama_of(kContextKeyHeads)), testing::loss_of, testing::kParityOptimizer,
                    words(0, 0, testing::kGlobalBatch),
                    data_parallel(mesh, {}, tensor_parallel(kLlamaRules), {.rotate_method = method}), {});
  };
  CHECK_THROWS_WITH_AS(compile_on(RotateMethod::AllToAll), doctest::Contains("heads of keys and values, of which"),
                       UserError);
  CHECK_NOTHROW(compile_on(RotateMethod::AllGather));
}

template <size_t N>
void expect_every_pair(const testing::Choice<N>& counts, size_t number, size_t of_each_mesh) {
  const auto pairs_in = [](const std::vector<testing::Choice<N>>& choices) {
    std::set<testing::Pair> seen;
    for (const auto& choice : choices)
      for (const testing::Pair& pair : testing::pairs_of(choice)) seen.insert(pair);
    return seen;
  };
  const auto every = choices_of(counts);
  const auto programs = testing::pairwise(every);
  CHECK((pairs_in(programs) == pairs_in(every)));  // pairs cannot be printed
  CHECK(programs.size() == number);
  size_t all = 0;
  for (int model = 0; model < counts[0]; ++model) all += programs_of(model, counts, true).size();
  CHECK(all == of_each_mesh);
}

TEST_CASE("meshes: each pair of choices that are in force stands in one of the programs") {
  expect_every_pair(kTensor, 37, 282);
  expect_every_pair(kContext, 60, 795);
}

}  // namespace mesh_parity_test
}  // namespace sfsdp
