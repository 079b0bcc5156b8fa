// SPDX-License-Identifier: BSD-3-Clause
// Packed documents: a row of several equals each of them by itself.
#include "sfsdp/models/documents.h"

#include <doctest/doctest.h>

#include <cmath>

#include "sfsdp/models/loss.h"
#include "sfsdp/models/registry.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing.h"

namespace sfsdp::models {
namespace {

constexpr int64_t kIds = 32, kRow = 16;
const std::vector<int64_t> kLengths = {5, 8, 3};  // of the documents of a row

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
std::pair<double, double> alone(const ModelSpec& spec, const at::Tensor& tokens, const at::Tensor& targets) {
  const LanguageModel model = seeded(spec);
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
      const auto [loss, norm] = alone(spec, tokens, targets);
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

}  // namespace
}  // namespace sfsdp::models
