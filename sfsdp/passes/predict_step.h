// SPDX-License-Identifier: BSD-3-Clause
// What a step would take as it is between two passes: simulated, with its memory plan.
#pragma once

#include <cstdint>

#include "sfsdp/cost/machine.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::passes {

struct StepPrediction {
  double seconds = 0, exposed = 0;  // of the step, and of communication that no compute hides
  int64_t peak_bytes = 0;           // with addresses, state included
};

// Fused execution, one kind of rank.
//   enough_bytes: memory above it is not searched for a tighter plan (plan/memory_plan.h); 0: it is
StepPrediction predict_step(const ir::Graph& graph, const cost::Machine& machine, int64_t micro_batches,
                            int64_t enough_bytes = 0);

}  // namespace sfsdp::passes
