// SPDX-License-Identifier: BSD-3-Clause
// A plan on a machine: what `sfsdp simulate` prints and writes of it. Torch-free.
#pragma once

#include <iosfwd>
#include <string>

#include "sfsdp/plan/step_plan.h"
#include "sfsdp/tools/simulate_step.h"

namespace sfsdp::tools {

// As text or --json to `out`, and the files of --trace and --html.
//   units: parallelism.fsdp_units, which say why parameters form a unit
void show_simulation(const Request& request, const SimulateSetup& setup, const plan::StepPlan& plan,
                     const StepFacts& facts, const std::string& units, std::ostream& out);

// `sfsdp simulate --plan FILE --machine M`.
int run_simulate_plan(const Request& request, std::ostream& out, std::ostream& err);

}  // namespace sfsdp::tools
