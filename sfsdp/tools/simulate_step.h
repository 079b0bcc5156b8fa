// SPDX-License-Identifier: BSD-3-Clause
// A compiled step on the machine that `sfsdp simulate` was given. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sfsdp/cost/machine.h"
#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/pipeline.h"
#include "sfsdp/plan/caching_allocator.h"
#include "sfsdp/plan/step_plan.h"
#include "sfsdp/sim/pytorch/lifetimes.h"
#include "sfsdp/sim/simulate.h"
#include "sfsdp/tools/commands.h"
#include "sfsdp/tools/deepspeed.h"
#include "sfsdp/tools/simulate_report.h"
#include "sfsdp/train/config/config.h"

namespace sfsdp::tools {

// --machine and --simulate.*.
struct SimulateSetup {
  cost::Machine machine;
  std::string execution;               // as given
  std::optional<DeepSpeed> deepspeed;  // the system is its stage 3
  sim::SimulateOptions options;
  std::optional<sim::PyTorchOptions> pytorch;  // whose memory it is, where that is not our plan's
  plan::CachingAllocator::Segments segments = plan::CachingAllocator::Segments::Expandable;
  bool shows_allocated = false;
  std::vector<std::string> notes;  // keys of the config that change nothing here
  // How much of a step one kernel may compute. The reference executor runs the ops of the decomposed graph one by one.
  passes::FuseScope fuse_scope() const;
};
// Throws UserError naming the option that is missing or wrong.
SimulateSetup simulate_setup(const Request& request, const train::JobConfig& config);

// What the report says of a step that its graph does not.
struct StepFacts {
  std::string model, mesh;
  int64_t world = 1;
  double tokens = 0;  // of a step, for each rank: those along a model axis share theirs; 0: not known
  double flops_per_token = 0;
};
//   graph: as it is executed
SimulateReport simulate_step(const ir::Graph& graph, plan::MemoryPlan memory, const SimulateSetup& setup,
                             const StepFacts& facts);

struct SimulatedPlan {
  std::optional<ir::Graph> executed;  // where that is not the plan's graph
  SimulateReport report;              // points into the graph
};
// A plan as setup.execution runs it. The reference executor allocates value by value: no arena, nothing lost between buffers.
SimulatedPlan simulate_step(const plan::StepPlan& plan, SimulateSetup setup, const StepFacts& facts);

// An option that is a whole number of at least 0.
int64_t whole_option(const Request& request, const std::string& name, const std::string& fallback);

}  // namespace sfsdp::tools
