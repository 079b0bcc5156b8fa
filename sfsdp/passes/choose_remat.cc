// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/choose_remat.h"

#include <algorithm>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/cost/machine.h"
#include "sfsdp/passes/predict_step.h"

namespace sfsdp::passes {
namespace {

// In 64ths of what mode none keeps beyond mode full, so that halves are exact.
constexpr int64_t kAll = 64, kStep = 16, kFinest = 2;

RematOptions of_share(int64_t share) {
  if (share == kAll) return {};
  if (share == 0) return {.mode = "full"};
  return {.mode = "memory_budget", .memory_budget = static_cast<double>(share) / kAll};
}

class Trials {
 public:
  Trials(const ir::Graph& graph, const PipelineOptions& options, const std::optional<StorageLayout>& layout)
      : graph_(graph), options_(options), layout_(layout), machine_(cost::load_machine(options.machine)) {
    memory_ = options.memory_gib > 0 ? options.memory_gib * (1 << 30) : machine_.memory_bytes;
  }

  RematTrial run(const RematOptions& remat, const std::string& wrap) const {
    ir::Graph graph = graph_.clone();
    PipelineOptions options = options_;
    options.remat = remat;
    options.wrap = wrap;
    options.observer = {};
    options.predict = false;
    std::optional<StorageLayout> layout = layout_;
    run_pipeline(graph, options, layout);
    const StepPrediction step = predict_step(graph, machine_, options.micro_batches, static_cast<int64_t>(memory_));
    RematTrial trial{remat, step.seconds, step.peak_bytes, false};
    trial.fits = static_cast<double>(trial.peak_bytes) <= memory_;
    return trial;
  }

 private:
  const ir::Graph& graph_;
  const PipelineOptions& options_;
  const std::optional<StorageLayout>& layout_;
  const cost::Machine machine_;
  double memory_ = 0;
};

bool better(const RematTrial& a, const RematTrial& b) {
  if (a.fits != b.fits) return a.fits;
  return a.fits ? a.seconds < b.seconds : a.peak_bytes < b.peak_bytes;
}

}  // namespace

RematChoice choose_remat(const ir::Graph& graph, const PipelineOptions& options,
                         const std::optional<StorageLayout>& layout) {
  if (options.machine.empty())
    throw UserError(concat("remat mode=auto has no machine to count costs on",
                           "\n  expected a machine file, such as machines/dgx_h100.toml, in parallelism.fsdp_machine"));
  const Trials trials(graph, options, layout);
  const std::string coarse = options.wrap == "search" ? "auto" : options.wrap;
  RematChoice choice;
  std::vector<int64_t> shares;
  const auto attempt = [&](int64_t share) {
    if (share < 0 || share > kAll || std::ranges::find(shares, share) != shares.end()) return;
    shares.push_back(share);
    choice.trials.push_back(trials.run(of_share(share), coarse));
  };
  const auto best = [&] {
    return static_cast<size_t>(std::ranges::min_element(choice.trials, better) - choice.trials.begin());
  };
  for (int64_t share = kAll; share >= 0; share -= kStep) attempt(share);
  for (int64_t step = kStep / 2; step >= kFinest; step /= 2) {
    const int64_t at = shares[best()];
    attempt(at + step);
    attempt(at - step);
  }
  choice.options = choice.trials[best()].options;
  if (options.wrap == "search") {
    std::vector<RematTrial> first = choice.trials;
    std::ranges::stable_sort(first, better);
    first.resize(std::min<size_t>(first.size(), 2));
    std::vector<RematTrial> searched;
    for (const RematTrial& trial : first) searched.push_back(trials.run(trial.options, options.wrap));
    choice.options = std::ranges::min_element(searched, better)->options;
    choice.trials.insert(choice.trials.end(), searched.begin(), searched.end());
  }
  return choice;
}

std::string table(std::span<const RematTrial> trials) {
  std::string text;
  for (const RematTrial& t : trials) {
    const std::string share = t.options.mode == "memory_budget" ? concat(' ', shortest(t.options.memory_budget)) : "";
    text += concat("recomputation ", t.options.mode, share, ": step ", with_commas(t.seconds * 1e3, 2), " ms, peak ",
                   with_commas(static_cast<double>(t.peak_bytes) / (1 << 30), 2), " GiB",
                   t.fits ? "" : ", which does not fit", "\n");
  }
  return text;
}

}  // namespace sfsdp::passes
