// SPDX-License-Identifier: BSD-3-Clause
// What a step takes on a machine: simulated, with its memory plan.
#pragma once

#include <cstdint>

#include "sfsdp/cost/machine.h"
#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/pass_report.h"

namespace sfsdp::tune {

// Fused execution, one kind of rank.
//   enough_bytes: memory above it is not searched for a tighter plan (plan/memory_plan.h); 0: it is
passes::StepFigures simulated(const ir::Graph& graph, const cost::Machine& machine, int64_t enough_bytes = 0);

// The faster of two steps that fit into `memory` bytes; one that fits rather than one that does not; of these the smaller.
bool is_better(const passes::StepFigures& a, const passes::StepFigures& b, double memory);

}  // namespace sfsdp::tune
