// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tune/simulated.h"

#include "sfsdp/plan/memory_plan.h"
#include "sfsdp/sim/simulate.h"

namespace sfsdp::tune {

passes::StepFigures simulated(const ir::Graph& graph, const cost::Machine& machine, int64_t enough_bytes) {
  const sim::Simulation simulation = sim::simulate(graph, machine);
  plan::MemoryOptions memory = plan::memory_options(graph, simulation.kernels);
  memory.enough_bytes = enough_bytes;
  return {simulation.step_seconds, simulation.exposed(), plan::plan_memory(graph, memory).peak()};
}

}  // namespace sfsdp::tune
