// SPDX-License-Identifier: BSD-3-Clause
// Packed documents: a row of several equals each of them by itself.
#include "sfsdp/models/documents.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "sfsdp/models/loss.h"
#include "sfsdp/models/registry.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing.h"
#include "sfsdp/testing/eager_torch.h"
#include "sfsdp/testing/plans_torch.h"
#include "sfsdp/testing/tiny_models_torch.h"

namespace sfsdp::models {
namespace documents_test {

constexpr int64_t kIds = 32, kRow = 17;
const std::vector<int64_t> kLengths = {5, 8, 4};  // of the documents of a row

std::vector<ModelSpec> specs() {
  const std::map<std::string, Arg> common = {
      {"dim", int64_t{32}}, {"n_layers", int64_t{2}}, {"n_heads", int64_t{4}}, {"vocab_size", kIds}};
  ModelSpec llama{"llama3", "debugmodel", common}, gpt{"gpt", "", common}, rotary = {"gpt", "", common};
  llama.args["n_kv_heads"] = int64_t{2};
  gpt.args["max_positions"] = kRow;
  rotary.args["rope"] = true;
  return {llama, gpt, rotary};
}

at::Tensor positions(int64_t rows) {
  std::vector<at::Tensor> parts;
  for (const int64_t length : kLengths) parts.push_back(at::arange(length, at::kLong));
  return at::cat(parts).expand({rows, kRow}).contiguous();
}

LanguageModel seeded(const ModelSpec& spec) {
  at::manual_seed(5);
  return make_language_model(spec);
}

TEST_CASE("documents: a row of several has the logits that each has by itself") {
  for (const ModelSpec& spec : specs()) {
    CAPTURE(spec.name);
    const LanguageModel model = seeded(spec);
    const at::NoGradGuard no_grad;
    const at::Tensor tokens = at::randint(kIds, {2, kRow}, at::kLong);
    const at::Tensor packed = model.forward(tokens, positions(2));
    int64_t begin = 0;
    for (const int64_t length : kLengths) {
      const at::Tensor alone = model.forward(tokens.narrow(1, begin, length), {});
      CHECK((packed.narrow(1, begin, length) - alone).abs().max().item<double>() <=
            2e-6 * alone.abs().max().item<double>());
      begin += length;
    }
    CHECK((packed - model.forward(tokens, {})).abs().max().item<double>() > 1e-3);  // else there were no borders
    at::Tensor changed = tokens.clone();
    changed.narrow(1, 0, kLengths[0]).add_(1).remainder_(kIds);
    const at::Tensor other = model.forward(changed, positions(2));
    CHECK(
        at::equal(other.narrow(1, kLengths[0], kRow - kLengths[0]), packed.narrow(1, kLengths[0], kRow - kLengths[0])));
    CHECK(!at::equal(other, packed));
  }
}

// Loss and gradient norm of documents by themselves, by plain autograd.
std::pair<double, double> alone(const LanguageModel& model, const at::Tensor& tokens, const at::Tensor& targets) {
  at::Tensor sum = at::zeros({});
  int64_t begin = 0;
  for (const int64_t length : kLengths) {
    const at::Tensor logits = model.forward(tokens.narrow(1, begin, length), {});
    sum = sum + at::cross_entropy_loss(logits.flatten(0, 1), targets.narrow(1, begin, length).flatten(), {},
                                       at::Reduction::Sum);
    begin += length;
  }
  const at::Tensor loss = sum / targets.numel();
  loss.backward();
  double squares = 0;
  for (const at::Tensor& p : model.module->parameters())
    if (p.grad().defined()) squares += p.grad().to(at::kDouble).square().sum().item<double>();
  return {loss.item<double>(), std::sqrt(squares)};
}

TEST_CASE("documents: a compiled step over packed rows equals documents by themselves, on one rank and on two") {
  at::manual_seed(9);
  const at::Tensor tokens = at::randint(kIds, {4, kRow}, at::kLong), targets = at::randint(kIds, {4, kRow}, at::kLong);
  for (const ModelSpec& spec : specs())
    for (const int64_t ranks : {1, 2}) {
      CAPTURE(spec.name);
      CAPTURE(ranks);
      const auto [loss, norm] = alone(seeded(spec), tokens, targets);
      const LanguageModel model = seeded(spec);
      const auto rows = [&](const at::Tensor& t, int64_t rank) { return t.chunk(ranks)[static_cast<size_t>(rank)]; };
      const auto batch = [&](int64_t rank) -> Batch {
        return {rows(tokens, rank), rows(targets, rank), rows(positions(4), rank)};
      };
      const auto program = std::make_shared<Program>(
          model.module,
          [forward = model.forward](const Batch& b) -> LossValue {
            return {cross_entropy(forward(b[0], b[2]), b[1]), {}};
          },
          SGD{.lr = 0}, batch(0), data_parallel(init_device_mesh({{"dp_shard", ranks}})), CompileOptions{});
      StepResult result;
      testing::run_ranks(ranks, [&](comm::CommWorld& world) {
        Step step(program, &world);
        const StepResult mine = step(batch(world.rank()));
        if (world.rank() == 0) result = mine;
      });
      CHECK(std::abs(result.loss - loss) <= 1e-6 * loss);
      CHECK(std::abs(result.grad_norm - norm) <= 1e-6 * norm);
    }
}

// Tokens, targets and positions of one batch.
Batch packed_batch(uint64_t seed, int64_t rows) {
  at::manual_seed(seed);
  return {at::randint(kIds, {rows, kRow}, at::kLong), at::randint(kIds, {rows, kRow}, at::kLong), positions(rows)};
}

std::shared_ptr<Program> packed_program(const LanguageModel& model, const Optimizer& optimizer, int64_t rows,
                                        const CompileOptions& options = {}, int64_t ranks = 1) {
  return std::make_shared<Program>(
      model.module,
      [forward = model.forward](const Batch& b) -> LossValue {
        return {cross_entropy(forward(b[0], b[2]), b[1]), {}};
      },
      optimizer, packed_batch(1, rows), data_parallel(init_device_mesh({{"dp_shard", ranks}})), options);
}

// Values of S x S numbers; and ops of attention that read documents.
std::pair<int64_t, int64_t> count_masks(const Held<const Program::Variant>& variant) {
  int64_t masks = 0, attention = 0;
  for (const auto& op : variant->graph.ops()) {
    attention += op->is("sdpa", "sdpa_backward") && op->attr_or("documents", false);
    for (const auto& result : op->results()) {
      const auto shape = result->type().shape();
      masks += std::ranges::count(shape, kRow) >= 2;
    }
  }
  return {masks, attention};
}

TEST_CASE("documents: the graph holds no S x S numbers, with and without recomputation, in training and evaluation") {
  for (const ModelSpec& spec : specs())
    for (const auto remat : {passes::RematMode::None, passes::RematMode::Full, passes::RematMode::Op}) {
      CAPTURE(spec.name);
      const LanguageModel model = seeded(spec);
      const auto program = packed_program(model, SGD{.lr = 0}, 2, {.pipeline = {.remat = {.mode = remat}}});
      const auto [masks, attention] = count_masks(program->first());
      CHECK(masks == 0);
      CHECK(attention == (remat == passes::RematMode::Full ? 6 : 4));  // two layers, and again
      CHECK(count_masks(program->evaluation(packed_batch(1, 2))) == std::pair<int64_t, int64_t>(0, 2));
    }
  const LanguageModel model = seeded(specs()[0]);
  const auto masked = packed_program(model, SGD{.lr = 0}, 2, {.pipeline = {.disable = {"canonicalise"}}});
  CHECK(count_masks(masked->first()).first > 0);  // else nothing was counted
}

TEST_CASE("documents: attention that reads them computes the bits of attention that reads a mask") {
  for (const ModelSpec& spec : specs())
    for (const bool half : {false, true}) {
      CAPTURE(spec.name);
      CAPTURE(half);
      std::vector<Batch> batches;  // drawn here: ranks are threads, and draws are ordered
      for (uint64_t i = 0; i < 6; ++i) batches.push_back(packed_batch(i, 2));
      const auto train = [&](const passes::PipelineOptions& pipeline) {
        const LanguageModel model = seeded(spec);
        if (half) model.module->to(at::kBFloat16);
        const auto program = packed_program(model, testing::kAdamW, 2, {.max_norm = 1.0, .pipeline = pipeline}, 2);
        return testing::train_on_ranks(program, 3, [&](int64_t step, int64_t rank) {
          return std::vector<Batch>{batches[static_cast<size_t>(2 * step + rank)]};
        });
      };
      const auto masked = train({.disable = {"canonicalise"}});
      testing::expect_same_bits(train({}), masked);
      testing::expect_same_bits(train({.remat = {.mode = passes::RematMode::Full}}), masked);
    }
}

TEST_CASE("documents: in a compiled step one that changes leaves the loss and the gradients of another bit-equal") {
  for (const ModelSpec& spec : specs()) {
    CAPTURE(spec.name);
    const LanguageModel model = seeded(spec);
    const auto second = [](const at::Tensor& t) { return t.narrow(1, kLengths[0], kLengths[1]).contiguous(); };
    const auto program = std::make_shared<Program>(
        model.module,
        [forward = model.forward, second](const Batch& b) -> LossValue {
          return {cross_entropy(second(forward(b[0], b[2])), second(b[1])), {}};
        },
        SGD{.lr = 0}, packed_batch(1, 2), data_parallel(init_device_mesh({{"dp_shard", 1}})), CompileOptions{});
    REQUIRE(count_masks(program->first()).second == 4);
    Step step(program, nullptr);
    Batch batch = packed_batch(2, 2);
    const StepResult before = step(batch);
    batch[0].narrow(1, 0, kLengths[0]).add_(1).remainder_(kIds);
    const StepResult after = step(batch);
    CHECK(after.loss == before.loss);
    CHECK(after.grad_norm == before.grad_norm);
    batch[0].narrow(1, kLengths[0], 1).add_(1).remainder_(kIds);
    CHECK(step(batch).loss != before.loss);
  }
}

// Each step's loss and norm are within 1e-6 of float64's, or as near as eager float32, whose weights round otherwise from step to step.
TEST_CASE("documents: five steps over packed rows are five steps over the documents by themselves") {
  constexpr double kRate = 0.1;
  for (const ModelSpec& spec : specs()) {
    CAPTURE(spec.name);
    const LanguageModel model = seeded(spec), eager = seeded(spec), exact = seeded(spec);
    exact.module->to(at::kDouble);
    const auto program = packed_program(model, SGD{.lr = kRate}, 4, {.max_norm = 1e9});
    Step step(program, nullptr);
    double first = 0, last = 0;
    const auto expect_near = [](double got, double float32, double float64) {
      CHECK(std::abs(got - float64) <= std::max(1e-6 * float64, 2 * std::abs(float32 - float64)));
    };
    for (uint64_t i = 0; i < 5; ++i) {
      const Batch batch = packed_batch(3, 4);
      const auto [loss, norm] = alone(eager, batch[0], batch[1]);
      const auto [exact_loss, exact_norm] = alone(exact, batch[0], batch[1]);
      const StepResult result = step(batch);
      expect_near(result.loss, loss, exact_loss);
      expect_near(result.grad_norm, norm, exact_norm);
      const at::NoGradGuard no_grad;
      for (const LanguageModel* by : {&eager, &exact})
        for (at::Tensor& p : by->module->parameters())
          if (p.grad().defined()) p.sub_(p.grad(), kRate), p.mutable_grad().reset();
      (i == 0 ? first : last) = loss;
    }
    CHECK(last < first - 1e-3);
  }
}

TEST_CASE("documents: the plan machine runs plans whose attention reads them") {
  for (const ModelSpec& spec : specs())
    for (const auto remat : {passes::RematMode::None, passes::RematMode::Full}) {
      CAPTURE(spec.name);
      CompileOptions options;
      options.max_norm = 1.0;
      options.micro_batches = 2;
      options.pipeline.remat.mode = remat;
      options.pipeline.canonical.document_tokens = 5;
      const LanguageModel model = seeded(spec);
      const auto program = packed_program(model, testing::kAdamW, 2, options, 2);
      REQUIRE(count_masks(program->first()).second >= 4);
      CHECK(testing::run_on_machine(program->first()) == "");
    }
}

}  // namespace documents_test
}  // namespace sfsdp::models
