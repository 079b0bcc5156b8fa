// SPDX-License-Identifier: BSD-3-Clause
// Many configurations compiled from few captures. Torch-free but for the function that captures.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "sfsdp/passes/canonical/canonicalise.h"
#include "sfsdp/plan/step_plan.h"
#include "sfsdp/train/captured_job.h"
#include "sfsdp/train/config/config.h"
#include "sfsdp/train/config/step_setup.h"

namespace sfsdp::tools {

// Captures the step of a config; LibTorch does.
using CaptureJob = std::function<train::CapturedJob(const train::JobConfig& config)>;

struct CompiledStep {
  plan::StepPlan plan;
  double flops_per_token = 0;  // forward and backward
};

// Keeps captures by what they depend on, canonicalised where the pipeline would begin with that. For all threads; one
// captures at a time.
class Captures {
 public:
  static constexpr size_t kMost = 16;  // that are kept

  explicit Captures(CaptureJob capture) : capture_(std::move(capture)) {}

  // The compiled step: the plan that train::make_job would run.
  //   throws: UserError as make_job does
  CompiledStep compile(const train::JobConfig& config, train::StepSetup setup);
  // Experts of the config's smallest mixture; 0: it has none.
  int64_t experts(const train::JobConfig& config);

 private:
  struct Entry {
    std::mutex mutex;
    std::optional<train::CapturedJob> job;
  };
  //   canonical: nullptr: as it was captured
  std::shared_ptr<const Entry> get(const train::JobConfig& config, const passes::CanonicaliseOptions* canonical);
  std::shared_ptr<Entry> find(const std::string& key);

  const CaptureJob capture_;
  std::mutex mutex_, capturing_;
  std::map<std::string, std::shared_ptr<Entry>> entries_;
  std::deque<std::string> order_;  // oldest first
};

}  // namespace sfsdp::tools
