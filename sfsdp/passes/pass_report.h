// SPDX-License-Identifier: BSD-3-Clause
// What a pass did, for people: a line, or a table of a whole pipeline.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

// What a step takes as it is between two passes.
struct StepFigures {
  double seconds = 0, exposed = 0;  // of the step, and of communication that no compute hides
  int64_t peak_bytes = 0;           // with addresses, state included
};
using Measure = std::function<StepFigures(const ir::Graph&)>;

struct PassReport {
  std::string name;
  bool changed = false;
  // The pass's own; and ops_, collectives_ and collective_bytes_ (of the larger side: what a gather makes, what a
  // reduction reads; once, however many micro-batches) before and after: "ops_before".
  Metrics metrics;
  std::optional<StepFigures> before, after;  // where RunOptions::measure is set
};

// "dead_code: changed; ops_after 9, ops_before 12, ops_removed 3", and what was measured before and after
std::string to_string(const PassReport& report);

// A line per pass: ops, collectives and their bytes before and after, where measured also the step's time, exposed
// communication and peak; then the pass's own metrics.
std::string table(std::span<const PassReport> reports);

}  // namespace sfsdp::passes
