// SPDX-License-Identifier: BSD-3-Clause
// Why the units of a step are as they are: their bytes and times, what ended them, and what other choices would cost.
#pragma once

#include <string>
#include <vector>

#include "sfsdp/tune/tune.h"

namespace sfsdp::tune {

struct Alternative {
  std::string change;
  double seconds = 0;  // of the step, simulated, against the schedule as it is: negative is faster
  int64_t bytes = 0;   // of the peak, likewise
};

struct UnitExplanation {
  std::string first, last;  // parameters
  size_t params = 0;
  std::string reason;
  double gathered_bytes = 0, gather_seconds = 0, reduced_bytes = 0, reduce_seconds = 0;
  // Compute of the unit before it in forward, under which its gather runs; of the unit after it in backward.
  double forward_cover = 0, backward_cover = 0;
  std::vector<Alternative> alternatives;
};

// Explains the units that hold a parameter whose name begins with `path`, a module path or "" for all.
std::vector<UnitExplanation> explain_units(const UnitTrials& trials, const Schedule& schedule, const std::string& path);

}  // namespace sfsdp::tune
