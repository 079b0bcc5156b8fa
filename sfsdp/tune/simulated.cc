// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tune/simulated.h"

#include "sfsdp/plan/memory_plan.h"
#include "sfsdp/sim/simulate.h"

namespace sfsdp::tune {

passes::StepFigures simulated(const ir::Graph& graph, const cost::Machine& machine, int64_t enough_bytes) {
  const sim::Simulation simulation = sim::simulate(graph, machine);
  return {simulation.step_seconds, simulation.exposed(),
          plan::plan_memory(graph, {.target = cost::target_of(machine), .enough_bytes = enough_bytes}).peak()};
}

bool is_better(const passes::StepFigures& a, const passes::StepFigures& b, double memory) {
  const auto fits = [&](const passes::StepFigures& step) { return static_cast<double>(step.peak_bytes) <= memory; };
  if (fits(a) != fits(b)) return fits(a);
  return fits(a) ? a.seconds < b.seconds : a.peak_bytes < b.peak_bytes;
}

}  // namespace sfsdp::tune
