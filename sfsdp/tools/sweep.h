// SPDX-License-Identifier: BSD-3-Clause
// `sfsdp simulate --sweep FILE`: many configurations in one process, which share what they have in common.
#pragma once

#include <iosfwd>

#include "sfsdp/tools/captures.h"
#include "sfsdp/tools/commands.h"
#include "sfsdp/tools/simulate_step.h"

namespace sfsdp::tools {

struct SimulatedConfig {
  CompiledStep step;
  SimulatedPlan simulated;  // points into the step
};

// One configuration on the machine and the system that the options of `request` name.
SimulatedConfig simulate_config(const Request& request, const train::JobConfig& config, Captures& captures);

// A line of JSON for each case of the file, in its order: the case, then what --json prints for it, or an `error`.
// Options of the command line hold for all cases that do not set them. How many there were goes to `err`.
//   throws: UserError for a file that cannot be read, and for options that are about one step, such as --trace
int run_sweep(const Request& request, const CaptureJob& capture, std::ostream& out, std::ostream& err);

}  // namespace sfsdp::tools
