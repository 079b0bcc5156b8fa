// SPDX-License-Identifier: BSD-3-Clause
// Training with a vocabulary that the axis tp cuts and does not divide, on ranks that are threads, equals one eager process: the last
// ranks have fewer rows of it, or none, and nobody sees what pads them.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/plan/verify/layouts.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing/parity_torch.h"
#include "sfsdp/testing/tiny_models_torch.h"

namespace sfsdp {
namespace odd_vocabulary_test {

using testing::Case, testing::Reference, testing::eager, testing::expect_parity, testing::make_gpt, testing::make_llama;

// The tiny models know 29 words, a prime.
const TensorParallel kHead = tensor_parallel({{"tok_embeddings|output", Shard(0)}}),
                     kTied = tensor_parallel({{"wte", Shard(0)}});
const std::vector<TensorParallelRule> kAllOfLlama = {
    {"*.wq|wk|wv|w1|w3", Shard(0)}, {"*.wo|w2", Shard(1)}, {"tok_embeddings|output", Shard(0)}};

Batch words(int64_t step, int64_t first, int64_t rows) { return testing::tokens(step, first, rows); }

template <class Make>
Reference reference_of(Make make, int64_t steps) {
  return eager(
      make, testing::loss_of, [](int64_t k) { return words(k, 0, testing::kGlobalBatch); }, steps);
}
template <class Make>
std::shared_ptr<Program> expect_trains(Make make, const Case& c, const Reference& reference) {
  const auto program = expect_parity(make, testing::loss_of, words, testing::kGlobalBatch, c, reference);
  const auto variant = program->first();
  CHECK(plan::verify_layouts(variant->graph) == "");
  return program;
}

TEST_CASE("a GPT whose table of 29 words is its head trains as eager does over tp 2, 3 and 4, in both executors") {
  const Reference reference = reference_of(make_gpt, 20);
  for (const int64_t ranks : {2, 3, 4}) expect_trains(make_gpt, {init_device_mesh({{"tp", ranks}}), kTied}, reference);
  const DeviceMesh mixed = init_device_mesh({{"dp_shard", 2}, {"tp", 2}});
  expect_trains(make_gpt, {mixed, kTied, {}, 3}, reference);
  CompileOptions by_op;
  by_op.executor = ExecutorKind::Reference;
  expect_trains(make_gpt, {mixed, kTied, {}, 1, by_op}, reference);
  expect_trains(make_gpt, {init_device_mesh({{"tp", 3}}), kTied, {}, 1, by_op}, reference);
  const TensorParallel by_sequence = tensor_parallel(kTied.rules, {.sequence_parallel = true});
  expect_trains(make_gpt, {mixed, by_sequence}, reference);
  expect_trains(make_gpt, {init_device_mesh({{"tp", 3}}), by_sequence}, reference);
}

TEST_CASE("a Llama of which tp cuts all, and 29 words in two tables, trains as eager does beside data parallelism") {
  const Reference reference = reference_of(make_llama, 20);
  const DeviceMesh mixed = init_device_mesh({{"dp_shard", 2}, {"tp", 2}});
  for (const bool by_sequence : {false, true})
    expect_trains(make_llama, {mixed, tensor_parallel(kAllOfLlama, {.sequence_parallel = by_sequence}), {}, 2},
                  reference);
  // Rows of padded logits, part by part.
  const TensorParallel in_parts =
      tensor_parallel(kAllOfLlama, {.sequence_parallel = true, .async_products = AsyncProducts::Everywhere});
  expect_trains(make_llama, {mixed, in_parts}, reference);
  expect_trains(make_llama, {init_device_mesh({{"tp", 4}}), kHead}, reference);
  expect_trains(make_llama, {init_device_mesh({{"dp_replicate", 2}, {"tp", 3}}), kHead}, reference);
  expect_trains(make_llama, {mixed, kHead, {.zero_stage = 1}}, reference);
  expect_trains(make_llama, {mixed, kHead, {.min_shard_numel = 1'000'000}}, reference);
  expect_trains(make_llama, {init_device_mesh({{"cp", 2}, {"tp", 2}}), kHead, {}, 1, {}, {.load_balance = true}},
                reference);
}

// As Gemma 2 caps them. The slope of a cap times a gradient of 0 is 0.
TEST_CASE("capped logits of 29 words train as eager does over tp 2 and 4, with a head and with a table that is one") {
  const auto capped = [](auto& model, const Batch& b) {
    return models::cross_entropy(3 * at::tanh(model->forward(b[0]) / 3), b[1]);
  };
  const auto expect_capped = [&](auto make, const TensorParallel& rules) {
    const Reference reference = eager(
        make, capped, [](int64_t k) { return words(k, 0, testing::kGlobalBatch); }, 20);
    for (const int64_t ranks : {2, 4})
      expect_parity(make, capped, words, testing::kGlobalBatch, {init_device_mesh({{"tp", ranks}}), rules}, reference);
  };
  expect_capped(make_gpt, kTied);
  expect_capped(make_llama, kHead);
}

// 2, 2, 1 and no rows.
TEST_CASE("a vocabulary of 5 over tp 4 leaves a rank without rows, and trains as eager does") {
  const auto make = [] {
    models::GptArgs args = testing::tiny_gpt();
    args.vocab_size = 5;
    return models::Gpt(args);
  };
  const auto few = [](int64_t step, int64_t first, int64_t rows) {
    Batch batch = words(step, first, rows);
    for (at::Tensor& t : batch) t = t.remainder(5);
    return batch;
  };
  Reference reference = eager(
      make, testing::loss_of, [&](int64_t k) { return few(k, 0, testing::kGlobalBatch); }, 4);
  // Five words are soon learned, and gradients cancel: with LibTorch's kernels of any processor (ATEN_CPU_CAPABILITY=default), which add in
  // another order, 1.07e-5.
  reference.moments = 2e-5;
  for (const DeviceMesh& mesh : {init_device_mesh({{"tp", 4}}), init_device_mesh({{"dp_shard", 2}, {"tp", 4}})}) {
    const auto program = expect_parity(make, testing::loss_of, few, testing::kGlobalBatch, {mesh, kTied}, reference);
    std::mutex mutex;
    testing::run_ranks(static_cast<int>(mesh.world_size()), [&](comm::CommWorld& world) {
      const Step step(program, &world);
      const Chunk rows = step.box_of("wte.weight").dims[0];
      const int64_t place = mesh.axis_rank(world.rank(), "tp");
      std::lock_guard lock(mutex);
      CHECK(rows == std::vector<Chunk>{{0, 2}, {2, 2}, {4, 1}, {5, 0}}[static_cast<size_t>(place)]);
    });
  }
}

TEST_CASE("in bfloat16 a vocabulary that tp does not divide trains as one rank does") {
  DataParallelOptions half;
  half.mixed_precision = {ir::DType::bf16, ir::DType::f32};
  const auto train = [&](const DeviceMesh& mesh, const TensorParallel& rules) {
    const Strategy strategy = data_parallel(mesh, half, rules);
    const int64_t rows = testing::kGlobalBatch / strategy.data_ranks();
    const auto program =
        compile_program(meta_init(make_llama), testing::loss_of, testing::kAdamW, words(0, 0, rows), strategy, {});
    return testing::train_on_ranks(program, 4, [&](int64_t step, int64_t rank) -> std::vector<Batch> {
      return {words(step, mesh.group_rank(rank, strategy.data_axes()) * rows, rows)};
    });
  };
  const testing::Trained one = train(init_device_mesh({{"dp_shard", 1}}), {});
  for (const DeviceMesh& mesh : {init_device_mesh({{"tp", 2}}), init_device_mesh({{"dp_shard", 2}, {"tp", 2}})}) {
    CAPTURE(to_string(mesh));
    const testing::Trained got = train(mesh, kHead);
    for (size_t k = 0; k < one.results.size(); ++k)
      CHECK(got.results[k].loss == doctest::Approx(one.results[k].loss).epsilon(1e-3));
  }
}

TEST_CASE("what tp 2 has trained goes on with the same bits on tp 3, 4 and 1") {
  std::map<std::string, at::Tensor> state;
  const auto each = [&](const DeviceMesh& mesh, const std::function<void(Step&, int64_t)>& body) {
    const Strategy strategy = data_parallel(mesh, {}, mesh.has("tp") ? kTied : TensorParallel());
    const int64_t rows = testing::kGlobalBatch / strategy.data_ranks();
    const auto program =
        compile_program(meta_init(make_gpt), testing::loss_of, testing::kAdamW, words(0, 0, rows), strategy, {});
    testing::run_ranks(static_cast<int>(mesh.world_size()), [&](comm::CommWorld& world) {
      Step step(program, &world);
      body(step, mesh.group_rank(world.rank(), strategy.data_axes()) * rows);
    });
  };
  std::mutex mutex;
  each(init_device_mesh({{"dp_shard", 2}, {"tp", 2}}), [&](Step& step, int64_t first) {
    for (int64_t k = 0; k < 3; ++k) step({words(k, first, testing::kGlobalBatch / 2)});
    for (const StoredTensor& t : step.program().tensors()) {
      const at::Tensor whole = step.gather(t.name);
      std::lock_guard lock(mutex);
      state[t.name] = whole;
    }
  });
  REQUIRE(state.at("wte.weight.exp_avg").sizes() == at::IntArrayRef({29, 20}));
  CHECK(state.at("wte.weight.exp_avg")[28].abs().sum().item<double>() > 0);
  for (const DeviceMesh& mesh : {init_device_mesh({{"tp", 3}}), init_device_mesh({{"dp_shard", 2}, {"tp", 4}}),
                                 init_device_mesh({{"dp_shard", 1}})}) {
    CAPTURE(to_string(mesh));
    each(mesh, [&](Step& step, int64_t) {
      step.load_state_dict(state);
      for (const auto& [name, value] : state) {
        const at::Tensor got = step.gather(name);
        std::lock_guard lock(mutex);
        CAPTURE(name);
        CHECK(at::equal(got, value));
      }
    });
  }
}

TEST_CASE("a compiled step that would count padding is refused, whichever op forgets it") {
  const auto program = compile_program(meta_init(make_gpt), testing::loss_of, testing::kAdamW, words(0, 0, 12),
                                       data_parallel(init_device_mesh({{"dp_shard", 2}, {"tp", 2}}), {}, kTied), {});
  const auto variant = program->first();
  const ir::Graph& graph = variant->graph;
  CHECK(plan::verify_layouts(ir::parse_or_throw(ir::print(graph))) == "");
  int changed = 0;
  for (size_t i = 0; i < graph.ops().size(); ++i)
    for (const char* name : {"classes", "num_weights"}) {
      if (!graph.ops()[i]->has_attr(name) || graph.ops()[i]->is("embedding_backward")) continue;
      const ir::Graph mutant = graph.clone();
      mutant.ops()[i]->attrs.erase(name);
      CHECK(plan::verify_layouts(mutant).find("of padding") != std::string::npos);
      ++changed;
    }
  CHECK(changed == 3);  // the lookup, the parts of the loss, its gradient
}

}  // namespace odd_vocabulary_test
}  // namespace sfsdp
