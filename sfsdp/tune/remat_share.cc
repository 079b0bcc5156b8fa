// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tune/remat_share.h"

#include <algorithm>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/cost/machine.h"
#include "sfsdp/tune/simulated.h"

namespace sfsdp::tune {
namespace {

using passes::RematMode;

constexpr int64_t kAll = 64, kStep = 16, kFinest = 2;

// In 64ths of what mode None keeps beyond mode Full, so that halves are exact.
passes::RematOptions of_share(int64_t share, const passes::RematOptions& fallback) {
  passes::RematOptions options = fallback;
  options.mode = share == kAll ? RematMode::None : share == 0 ? RematMode::Full : RematMode::MemoryBudget;
  options.memory_budget = static_cast<double>(share) / kAll;
  return options;
}

class Trials {
 public:
  Trials(const ir::Graph& graph, passes::PipelineOptions options, const TuneOptions& tune,
         const std::optional<plan::BucketLayouts>& layout)
      : graph_(graph),
        options_(std::move(options)),
        tune_(tune),
        layout_(layout),
        machine_(cost::load_machine(tune.machine, tune.attention)) {
    memory_ = memory_of(tune, machine_, graph.mesh);
    options_.observer = {};
    options_.measure = {};
  }

  RematTrial run(const passes::RematOptions& remat, Wrap wrap) const {
    ir::Graph graph = graph_.clone();
    passes::PipelineOptions options = options_;
    TuneOptions tune = tune_;
    options.remat = remat;
    tune.wrap = wrap;
    std::optional<plan::BucketLayouts> layout = layout_;
    run_pipeline(graph, options, tune, layout);
    const auto step = simulated(graph, machine_, static_cast<int64_t>(memory_));
    RematTrial trial{remat, step.seconds, step.peak_bytes, false};
    trial.fits = static_cast<double>(trial.peak_bytes) <= memory_;
    return trial;
  }

 private:
  const ir::Graph& graph_;
  passes::PipelineOptions options_;
  const TuneOptions& tune_;
  const std::optional<plan::BucketLayouts>& layout_;
  const cost::Machine machine_;
  double memory_ = 0;
};

bool better(const RematTrial& a, const RematTrial& b) {
  if (a.fits != b.fits) return a.fits;
  return a.fits ? a.seconds < b.seconds : a.peak_bytes < b.peak_bytes;
}

}  // namespace

RematChoice choose_remat(const ir::Graph& graph, const passes::PipelineOptions& options, const TuneOptions& tune,
                         const std::optional<plan::BucketLayouts>& layout) {
  if (tune.machine.empty())
    throw UserError(
        "TuneOptions::choose_remat has no machine to count costs on\n  expected a machine by name or its file in"
        " TuneOptions::machine, such as dgx_h100");
  const Trials trials(graph, options, tune, layout);
  const Wrap coarse = tune.wrap == Wrap::Search ? Wrap::Auto : tune.wrap;
  RematChoice choice;
  std::vector<int64_t> shares;
  const auto attempt = [&](int64_t share) {
    if (share < 0 || share > kAll || std::ranges::find(shares, share) != shares.end()) return;
    shares.push_back(share);
    choice.trials.push_back(trials.run(of_share(share, options.remat), coarse));
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
  if (tune.wrap == Wrap::Search) {
    std::vector<RematTrial> first = choice.trials;
    std::ranges::stable_sort(first, better);
    first.resize(std::min<size_t>(first.size(), 2));
    std::vector<RematTrial> searched;
    for (const RematTrial& trial : first) searched.push_back(trials.run(trial.options, tune.wrap));
    choice.options = std::ranges::min_element(searched, better)->options;
    choice.trials.insert(choice.trials.end(), searched.begin(), searched.end());
  }
  return choice;
}

std::string table(std::span<const RematTrial> trials) {
  std::string text;
  for (const RematTrial& t : trials) {
    const std::string share =
        t.options.mode == RematMode::MemoryBudget ? concat(' ', shortest(t.options.memory_budget)) : "";
    text += concat("remat ", passes::to_string(t.options.mode), share, ": step ", with_commas(t.seconds * 1e3, 2),
                   " ms, peak ", with_commas(static_cast<double>(t.peak_bytes) / (1 << 30), 2), " GiB",
                   t.fits ? "" : ", which does not fit", "\n");
  }
  return text;
}

}  // namespace sfsdp::tune
