// SPDX-License-Identifier: BSD-3-Clause
// What a pass did, for people: a line, or a table of a whole pipeline.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "sfsdp/passes/pass.h"
#include "sfsdp/passes/predict_step.h"

namespace sfsdp::passes {

struct PassReport {
  std::string name;
  bool changed = false;
  // The pass's own; and ops_, collectives_ and collective_bytes_ (of the larger side: what a gather makes, what a
  // reduction reads; once, however many micro-batches) before and after: "ops_before".
  Metrics metrics;
  std::optional<StepPrediction> before, after;  // where RunOptions::predict is set
};

// "dead_code: changed; ops_after 9, ops_before 12, ops_removed 3", and what is predicted before and after
std::string to_string(const PassReport& report);

// A line per pass: ops, collectives and their bytes before and after, where predicted also the step's time, exposed
// communication and peak; then the pass's own metrics.
std::string table(std::span<const PassReport> reports);

}  // namespace sfsdp::passes
