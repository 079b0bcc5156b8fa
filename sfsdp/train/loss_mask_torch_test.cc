// SPDX-License-Identifier: BSD-3-Clause
// A loss that counts some targets alone, on any number of ranks and micro-batches, against LibTorch in eager mode on the whole
// batch, whose loss is written out here.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <doctest/doctest.h>

#include <cmath>
#include <map>

#include "sfsdp/base/error.h"
#include "sfsdp/models/exported/exported_module.h"
#include "sfsdp/testing.h"
#include "sfsdp/testing/eager_torch.h"
#include "sfsdp/testing/source_dir.h"
#include "sfsdp/train/job.h"

namespace sfsdp::train {
namespace loss_mask_torch_test {

constexpr int64_t kRows = 12, kLength = 7, kSteps = 3;

// The whole batch. Rows count more and more targets, from none on: no two ranks count as many.
struct Rows {
  at::Tensor tokens, targets, labels;
};

Rows rows_of(int64_t step, int64_t vocab) {
  at::Generator random = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(step) + 1);
  const at::Tensor ids = at::randint(0, vocab, {kRows, kLength + 1}, random, at::TensorOptions(at::kLong));
  const at::Tensor counts = at::arange(kLength + 1).unsqueeze(0).lt(at::arange(kRows).div(2, "floor").unsqueeze(1));
  const at::Tensor masked = at::where(counts, ids, at::full({}, -100, at::kLong));
  return {ids.narrow(1, 0, kLength).contiguous(), masked.narrow(1, 1, kLength).contiguous(),
          masked.narrow(1, 0, kLength).contiguous()};
}

// -log p of each target that counts.
at::Tensor losses_of(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor counts = targets.ge(0);
  const at::Tensor wide = logits.to(at::kDouble);
  const at::Tensor log_p = wide - wide.exp().sum(-1, /*keepdim=*/true).log();
  return -log_p.gather(-1, targets.clamp_min(0).unsqueeze(-1)).squeeze(-1).masked_select(counts);
}

using Forward = std::function<at::Tensor(const at::Tensor& tokens)>;
using TargetsOf = std::function<at::Tensor(const Rows&)>;

const AdamW kOptimizer = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

std::vector<StepResult> eager_steps(const std::shared_ptr<torch::nn::Module>& module, const Forward& forward,
                                    const TargetsOf& targets_of, int64_t vocab) {
  testing::EagerTrainer trainer(module, kOptimizer, 0.5);
  std::vector<StepResult> results;
  for (int64_t k = 0; k < kSteps; ++k) {
    const Rows rows = rows_of(k, vocab);
    results.push_back(trainer.step([&] { return losses_of(forward(rows.tokens), targets_of(rows)).mean(); }));
  }
  return results;
}

JobConfig config_of(int64_t ranks, int64_t micro_batches) {
  JobConfig config;
  config.model_args = {{"dim", int64_t{32}},       {"n_layers", int64_t{2}},    {"n_heads", int64_t{4}},
                       {"n_kv_heads", int64_t{2}}, {"vocab_size", int64_t{40}}, {"multiple_of", int64_t{16}}};
  config.training.mixed_precision_param = "float32";
  config.training.loss_mask = true;
  config.training.seq_len = kLength;
  config.training.max_norm = 0.5;
  config.training.global_batch_size = kRows;
  config.training.local_batch_size = kRows / ranks / micro_batches;
  config.optimizer.lr = kOptimizer.lr;
  return config;
}

// Row j of a step belongs to rank j / local % ranks of micro-batch j / local / ranks, as the loader has it.
std::vector<Batch> batches_of(const CompiledJob& job, const Rows& rows, int64_t rank, int64_t ranks, int64_t micro) {
  const int64_t local = kRows / ranks / micro;
  const std::map<std::string, at::Tensor> all = {
      {"tokens", rows.tokens}, {"targets", rows.targets}, {"labels", rows.labels}};
  std::vector<Batch> batches;
  for (int64_t m = 0; m < micro; ++m) {
    Batch& batch = batches.emplace_back();
    for (const std::string& name : job.batch)
      batch.push_back(all.at(name).narrow(0, (m * ranks + rank) * local, local).contiguous());
  }
  return batches;
}

void expect_near(double got, double expected) { CHECK(std::abs(got - expected) <= 1e-6 * expected); }

struct Setting {
  int64_t ranks = 1, micro_batches = 1, loss_chunks = 1;
};
const Setting kSettings[] = {{1}, {2}, {3}, {1, 2}, {2, 2}, {3, 2}, {1, 1, 3}, {2, 2, 3}};

TEST_CASE("the mean is over all targets that count, however unevenly ranks and micro-batches have them") {
  for (const Setting& setting : kSettings) {
    CAPTURE(setting.ranks);
    CAPTURE(setting.micro_batches);
    CAPTURE(setting.loss_chunks);
    JobConfig config = config_of(setting.ranks, setting.micro_batches);
    config.training.loss_chunks = setting.loss_chunks;
    const CompiledJob job = make_job(config, setting.ranks);
    const auto eager = models::make_language_model({"llama3", "debugmodel", config.model_args});
    const auto forward = [&](const at::Tensor& tokens) { return eager.forward(tokens, {}); };
    const auto targets = [](const Rows& rows) { return rows.targets; };
    double evaluation = 0, first_own = -1;
    const auto trained = testing::train_on_ranks(
        job.program, kSteps,
        [&](int64_t step, int64_t rank) {
          return batches_of(job, rows_of(step, 40), rank, setting.ranks, setting.micro_batches);
        },
        [&](Step& step, int rank) {
          const auto values = testing::gather_all(step);
          const double loss = step.eval(batches_of(job, rows_of(0, 40), rank, setting.ranks, 1)[0]);
          if (rank != 0) return;
          evaluation = loss;
          at::NoGradGuard no_grad;
          for (auto& p : eager.module->named_parameters()) p.value().copy_(values.at(p.key()));
        });
    const std::vector<StepResult> expected = eager_steps(eager.module, forward, targets, 40);
    expect_near(evaluation, expected[0].loss);
    for (size_t k = 0; k < expected.size(); ++k) {
      expect_near(trained.results[k].loss, expected[k].loss);
      expect_near(trained.results[k].grad_norm, expected[k].grad_norm);
      CHECK_FALSE(trained.results[k].skipped);
    }
    first_own = trained.results[0].own_loss;
    CHECK(std::isfinite(first_own));
    if (setting.ranks > 1) CHECK(std::abs(first_own - expected[0].loss) > 1e-4 * expected[0].loss);
  }
}

TEST_CASE("a mean of the rows' own means, or one over all targets, is another number") {
  const auto model = models::make_language_model({"llama3", "debugmodel", config_of(1, 1).model_args});
  const Rows rows = rows_of(0, 40);
  const at::NoGradGuard no_grad;
  const double right = losses_of(model.forward(rows.tokens, {}), rows.targets).mean().item<double>();
  double by_parts = 0;
  for (int64_t part = 0; part < 2; ++part) {
    const auto half = [&](const at::Tensor& t) { return t.narrow(0, part * kRows / 2, kRows / 2); };
    by_parts += losses_of(model.forward(half(rows.tokens), {}), half(rows.targets)).mean().item<double>() / 2;
  }
  CHECK(std::abs(by_parts - right) > 1e-5 * right);
}

TEST_CASE("a rank, a micro-batch or a batch in which nothing counts") {
  const CompiledJob job = make_job(config_of(2, 1), 2);
  testing::run_ranks(2, [&](comm::CommWorld& world) {
    Step step(job.program, &world);
    Rows rows = rows_of(0, 40);
    rows.targets.narrow(0, world.rank() == 1 ? kRows / 2 : 0, kRows / 2).fill_(-100);
    rows.targets[0][0] = 3;  // on rank 0
    const StepResult one = step(batches_of(job, rows, world.rank(), 2, 1));
    CHECK(std::isfinite(one.loss));
    CHECK_FALSE(one.skipped);
    CHECK(one.own_loss == (world.rank() == 0 ? one.loss : 0));
    const auto before = testing::gather_all(step);
    rows.targets.fill_(-100);
    const StepResult none = step(batches_of(job, rows, world.rank(), 2, 1));
    CHECK(none.skipped);
    CHECK(none.own_loss == 0);
    for (const auto& [name, value] : testing::gather_all(step)) CHECK_MESSAGE(at::equal(value, before.at(name)), name);
  });
}

// An archive of torch.export: its logits with our loss, or its own loss, which shifts the labels that it is given.
TEST_CASE("the mask of an archive: targets beside its logits, or labels of the loss in its graph") {
  const std::string path = testing::source_dir() + "/tests/fixtures/exported/decoder.pt2";
  const auto archive = std::make_shared<const exported::Program>(exported::read_program(path));
  for (const bool in_graph : {false, true})
    for (const Setting& setting : {Setting{1}, Setting{2}, Setting{3}, Setting{2, 2}}) {
      CAPTURE(in_graph);
      CAPTURE(setting.ranks);
      CAPTURE(setting.micro_batches);
      JobConfig config = config_of(setting.ranks, setting.micro_batches);
      config.model_args = {};
      config.model.name = "exported";
      config.model.path = path;
      config.model.inputs = {"input_ids=tokens", in_graph ? "labels=labels" : "labels=tokens"};
      if (!in_graph) config.model.logits = "logits";
      const CompiledJob job = make_job(config, setting.ranks);
      models::ExportedModule eager(archive);
      const auto& names = eager->output_names();
      const auto logits = static_cast<size_t>(std::ranges::find(names, "logits") - names.begin());
      const auto forward = [&](const at::Tensor& tokens) { return eager->forward({tokens, tokens}).at(logits); };
      const auto targets = [&](const Rows& rows) {
        at::Tensor all = rows.targets.clone();
        if (in_graph) all.select(1, kLength - 1).fill_(-100);  // what comes after a row is not among its labels
        return all;
      };
      const auto trained = testing::train_on_ranks(
          job.program, kSteps,
          [&](int64_t step, int64_t rank) {
            return batches_of(job, rows_of(step, 64), rank, setting.ranks, setting.micro_batches);
          },
          [&](Step& step, int rank) {
            load_initial_weights(job, step);
            const auto values = testing::gather_all(step);
            if (rank != 0) return;
            at::NoGradGuard no_grad;
            for (auto& p : eager->named_parameters()) p.value().copy_(values.at(p.key()));
            for (auto& b : eager->named_buffers()) b.value().copy_(values.at(b.key()));
          });
      const std::vector<StepResult> expected = eager_steps(eager.ptr(), forward, targets, 64);
      for (size_t k = 0; k < expected.size(); ++k) {
        expect_near(trained.results[k].loss, expected[k].loss);
        expect_near(trained.results[k].grad_norm, expected[k].grad_norm);
      }
    }
}

TEST_CASE("a mask that no input of an archive reads is refused") {
  JobConfig config = config_of(1, 1);
  config.model_args = {};
  config.model.name = "exported";
  config.model.path = testing::source_dir() + "/tests/fixtures/exported/decoder.pt2";
  config.model.inputs = {"input_ids=tokens", "labels=tokens"};
  CHECK_THROWS_WITH_AS(make_job(config, 1), doctest::Contains("no input of"), UserError);
  config.model.prediction = "logits";
  CHECK_THROWS_WITH_AS(make_job(config, 1), doctest::Contains("loss_mask = true with model.prediction"), UserError);
}

TEST_CASE("without training.loss_mask the step has no count") {
  JobConfig config = config_of(1, 1);
  config.training.loss_mask = false;
  const auto graph_of = [](const JobConfig& c) { return capture_job(c).graph.outputs.size(); };
  CHECK(graph_of(config) == 1);
  config.training.loss_mask = true;
  CHECK(graph_of(config) == 2);
}

}  // namespace loss_mask_torch_test
}  // namespace sfsdp::train
