// SPDX-License-Identifier: BSD-3-Clause
// Steps whose products are computed part by part beside what tp sends (TensorParallelOptions::async_products) train as one eager process
// does, and send what docs/parallel.md says.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/plan/verify/layouts.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing/block_collectives.h"
#include "sfsdp/testing/parity_torch.h"
#include "sfsdp/testing/tiny_models_torch.h"

namespace sfsdp {
namespace {

constexpr int64_t kSteps = 6;

Batch rows(int64_t step, int64_t first, int64_t count) { return testing::tokens(step, first, count, 12); }

// Heads and widths that 2, 3 and 4 ranks divide.
const auto kMakeLlama = [] {
  models::Llama3Args args = testing::tiny_llama();
  args.n_heads = args.n_kv_heads = 12;
  args.head_dim = 2;
  args.hidden_dim = 36;
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
    const auto program = testing::expect_parity(make, testing::loss_of, rows, testing::kGlobalBatch,
                                                case_of(async, rules), reference);
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
TEST_CASE("async tensor parallelism: beside other axes, with micro-batches, and where backward computes forward again") {
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

}  // namespace
}  // namespace sfsdp
