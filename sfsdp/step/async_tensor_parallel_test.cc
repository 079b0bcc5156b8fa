// SPDX-License-Identifier: BSD-3-Clause
// Steps whose products are computed part by part beside what tp sends (TensorParallelOptions::async_products) train as one eager process
// does, and send what docs/model_axes.md says.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/plan/verify/layouts.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing/block_collectives.h"
#include "sfsdp/testing/parity_torch.h"
#include "sfsdp/testing/tiny_models_torch.h"

namespace sfsdp {
namespace async_tensor_parallel_test {

constexpr int64_t kSteps = 20;

Batch rows(int64_t step, int64_t first, int64_t count) { return testing::tokens(step, first, count, 12); }

// Heads and widths that 2, 3 and 4 ranks divide.
const auto kMakeLlama = [] {
  models::Llama3Args args = testing::tiny_llama();
  args.n_heads = args.n_kv_heads = 12;
  args.head_dim = 2;
  args.hidden_dim = 36;
  return models::Llama3(args);
};

// And a vocabulary that two do.
const auto kMakeEvenVocabulary = [] {
  models::Llama3Args args = testing::tiny_llama();
  args.hidden_dim = 36;
  args.vocab_size = 30;
  return models::Llama3(args);
};

const std::vector<TensorParallelRule> kLlamaRules = {{"*.wq|wk|wv|w1|w3", Shard(0)}, {"*.wo|w2", Shard(1)}};
const std::vector<TensorParallelRule> kGptRules = {{"*.c_attn|c_fc", Shard(0)}, {"*.c_proj", Shard(1)}};

struct Async {
  std::vector<MeshAxis> axes;
  ExecutorKind executor = ExecutorKind::Planned;
  passes::RematMode remat = passes::RematMode::None;
  int64_t micro_batches = 1;
  bool vocabulary = false;  // the head is cut in its classes, the table in its rows
  RotateMethod rotate_method = RotateMethod::AllGather;
};

testing::Case case_of(const Async& async, std::vector<TensorParallelRule> rules,
                      AsyncProducts products = AsyncProducts::Everywhere) {
  testing::Case c = {init_device_mesh(async.axes), {}};
  if (async.vocabulary) rules.push_back({"tok_embeddings|output", Shard(0)});
  c.rules = tensor_parallel(std::move(rules), {.sequence_parallel = true, .async_products = products});
  c.micro_batches = async.micro_batches;
  c.compile.executor = async.executor;
  c.compile.pipeline.remat.mode = async.remat;
  c.context.rotate_method = async.rotate_method;
  return c;
}

int64_t count_of(const ir::Graph& graph, const char* opcode) {
  return std::ranges::count_if(graph.ops(), [&](const auto& op) { return op->is(opcode); });
}

template <class Make>
void check_all(Make make, const std::vector<TensorParallelRule>& rules, const std::vector<Async>& all) {
  const testing::Reference reference = testing::eager(
      make, testing::loss_of, [](int64_t k) { return rows(k, 0, testing::kGlobalBatch); }, kSteps);
  for (const Async& async : all) {
    CAPTURE(to_string(init_device_mesh(async.axes)));
    CAPTURE(static_cast<int>(async.executor));
    CAPTURE(static_cast<int>(async.remat));
    CAPTURE(async.micro_batches);
    const auto program =
        testing::expect_parity(make, testing::loss_of, rows, testing::kGlobalBatch, case_of(async, rules), reference);
    const auto variant = program->first();
    CHECK(plan::verify_layouts(variant->graph) == "");
    CHECK(count_of(variant->graph, "join_parts") > 0);
    CHECK(count_of(variant->graph, "add_parts") > 0);
  }
}

constexpr ExecutorKind kReference = ExecutorKind::Reference, kPlanned = ExecutorKind::Planned;

TEST_CASE("async tensor parallelism: Llama over 2, 3 and 4 ranks trains as eager does, on both executors") {
  std::vector<Async> all;
  for (const int64_t ranks : {2, 3, 4})
    for (const ExecutorKind executor : {kReference, kPlanned}) all.push_back({{{"tp", ranks}}, executor});
  check_all(kMakeLlama, kLlamaRules, all);
}

// Three samples a micro-batch: two ranks cut their tokens, which do not lie together.
TEST_CASE(
    "async tensor parallelism: beside other axes, with micro-batches, and where backward computes forward again") {
  using enum passes::RematMode;
  std::vector<Async> all = {{{{"dp_shard", 2}, {"tp", 2}}},
                            {{{"dp_shard", 2}, {"tp", 2}}, kPlanned, None, 4},
                            {{{"dp_shard", 2}, {"tp", 2}}, kReference, Full, 4},
                            {{{"dp_shard", 2}, {"tp", 3}}, kReference, None, 2},
                            {{{"cp", 2}, {"tp", 2}}},
                            {{{"cp", 2}, {"tp", 3}}, kReference},
                            {{{"cp", 3}, {"tp", 2}}, kPlanned, Full, 8},
                            {{{"dp_shard", 2}, {"cp", 2}, {"tp", 2}}, kPlanned, Full, 3},
                            {{{"tp", 3}}, kPlanned, Full},
                            {{{"tp", 4}}, kPlanned, Op},
                            {{{"tp", 2}}, kReference, Op, 2},
                            {{{"dp_replicate", 2}, {"tp", 2}}, kPlanned, Op, 3}};
  all.push_back({{{"cp", 2}, {"tp", 2}}, kPlanned, None, 1, false, RotateMethod::Ring});
  check_all(kMakeLlama, kLlamaRules, all);
}

// Tables and heads in parts too: what is gathered for the head is read by one product.
TEST_CASE("async tensor parallelism: a vocabulary over tp; GPT, whose q, k and v are one product with a bias") {
  check_all(kMakeEvenVocabulary, kLlamaRules,
            {{{{"tp", 2}}, kPlanned, passes::RematMode::None, 1, true},
             {{{"dp_shard", 2}, {"tp", 2}}, kReference, passes::RematMode::Full, 2, true}});
  check_all(
      testing::make_gpt, kGptRules,
      {{{{"tp", 2}}}, {{{"tp", 4}}, kReference}, {{{"dp_shard", 2}, {"tp", 2}}, kPlanned, passes::RematMode::Full, 3}});
}

// Two losses of one model in bfloat16, whose sums differ by rounding alone.
TEST_CASE("async tensor parallelism: in bfloat16 a step is as near to the one that gathers rows as rounding is") {
  for (const int64_t ranks : {2, 3}) {
    std::vector<StepResult> results[2];
    for (const AsyncProducts products : {AsyncProducts::Off, AsyncProducts::Everywhere}) {
      testing::Case c = case_of({{{"tp", ranks}}}, kLlamaRules, products);
      c.options.mixed_precision = {ir::DType::bf16, ir::DType::f32};
      auto program = compile_program(meta_init(kMakeLlama), testing::loss_of, testing::kParityOptimizer, rows(0, 0, 12),
                                     data_parallel(c.mesh, c.options, c.rules), c.compile);
      testing::run_ranks(static_cast<int>(ranks), [&](comm::CommWorld& world) {
        Step step(program, &world);
        for (int64_t k = 0; k < 3; ++k) {
          const StepResult result = step(rows(k, 0, 12));
          if (world.rank() == 0) results[products == AsyncProducts::Off ? 0 : 1].push_back(result);
        }
      });
    }
    for (size_t k = 0; k < 3; ++k) {
      CHECK(results[1][k].loss == doctest::Approx(results[0][k].loss).epsilon(2e-4));
      CHECK(results[1][k].grad_norm == doctest::Approx(results[0][k].grad_norm).epsilon(1e-2));
    }
  }
}

std::shared_ptr<Program> compiled(const Async& async, AsyncProducts products = AsyncProducts::Everywhere,
                                  const std::string& machine = "") {
  testing::Case c = case_of(async, kLlamaRules, products);
  c.compile.tune.machine = machine;
  return compile_program(meta_init(kMakeLlama), testing::loss_of, testing::kParityOptimizer, rows(0, 0, 12),
                         data_parallel(c.mesh, c.options, c.rules), c.compile);
}

// In place of two gathers and two reduce_scatters each way, as many permutes as there are other ranks for each. What is computed again is
// sent again, but for the last sum, which the next block keeps. The all_gather is of what the
// last block gives, for a head that no rule cuts.
TEST_CASE("async tensor parallelism: a block sends permutes alone, as many as there are other ranks for each site") {
  using enum passes::RematMode;
  for (const int64_t ranks : {2, 3, 4})
    for (const auto& [remat, backward] : {std::pair{None, 4}, {Full, 7}, {Op, 6}}) {
      CAPTURE(ranks);
      CAPTURE(static_cast<int>(remat));
      const auto program = compiled({{{"dp_shard", 1}, {"tp", ranks}}, kPlanned, remat});
      const auto variant = program->first();
      CHECK(testing::collectives_by_block(variant->graph, "tp").at("layers.1") ==
            concat(backward * (ranks - 1), " bwd permute, 1 fwd all_gather, ", 4 * (ranks - 1), " fwd permute"));
    }
}

// A permute is started before products that do not read it and waited for after them. Where backward keeps what products make (Op), it
// brings gathered rows again for gradients of weights alone, two sites a block, of which the first block has one.
TEST_CASE("async tensor parallelism: whatever is sent of a block passes under products") {
  using enum passes::RematMode;
  for (const int64_t ranks : {2, 3, 4})
    for (const auto remat : {None, Full, Op}) {
      CAPTURE(ranks);
      CAPTURE(static_cast<int>(remat));
      const auto program = compiled({{{"tp", ranks}}, kPlanned, remat});
      const auto variant = program->first();
      std::map<const ir::Value*, int64_t> started;
      int64_t products = 0, bare = 0, covered = 0;
      for (const auto& op : variant->graph.ops()) {
        if (op->is("linear", "linear_dx", "linear_dw")) ++products;
        if (op->is("permute.start")) started[op->result()] = products;
        if (op->is("wait") && started.contains(op->operands[0]))
          ++(products > started.at(op->operands[0]) ? covered : bare);
      }
      CHECK(covered > 0);
      CHECK(bare == (remat == Op ? 3 * (ranks - 1) : 0));
    }
}

TEST_CASE("async tensor parallelism that takes no site says why") {
  const auto says = [](const std::vector<MeshAxis>& axes, bool sequence, AsyncProducts products,
                       const std::string& machine, const char* why) {
    CompileOptions compile;
    compile.tune.machine = machine;
    const auto rules = tensor_parallel(kLlamaRules, {.sequence_parallel = sequence, .async_products = products});
    CHECK_THROWS_WITH_AS(compile_program(meta_init(kMakeLlama), testing::loss_of, testing::kParityOptimizer,
                                         rows(0, 0, 12), data_parallel(init_device_mesh(axes), {}, rules), compile),
                         doctest::Contains(why), UserError);
  };
  using enum AsyncProducts;
  says({{"dp_shard", 2}}, true, Everywhere, "", "with mesh axis tp = 1: nothing is sent between products\n  expected");
  says({{"tp", 2}}, false, Everywhere, "", "without TensorParallelOptions::sequence_parallel");
  says({{"tp", 2}}, true, WhereFaster, "", "has no machine to count costs on\n  expected");
  says({{"tp", 2}}, true, WhereFaster, "dgx_h100", "sites none is faster part by part; at layers.");
}

}  // namespace async_tensor_parallel_test
}  // namespace sfsdp
