// SPDX-License-Identifier: BSD-3-Clause
// What:   the first gathers of forward are started in the step before, right behind the update of what they gather, and
//         carried into the next step in flight.
// Why:    a step's first gather has nothing of its own step to run under; the updates of the other units hide it.
// Needs:  gathers in two halves (split_collectives); behind pipeline_reductions, which orders the updates.
// Leaves: of the first `depth` gathers of forward (those whose parameter is updated) an async state `<param>.in_flight`
//         that forward waits for; its next value starts behind the unit's update, which comes as soon as the norm allows.
//         Who runs the graph starts what is carried before the first step, and again when a parameter was written.
//         With several micro-batches nothing: what repeats waits in every repetition, but a carried value is there once.
#pragma once

#include <cstdint>

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

struct CarryGathersOptions {
  int64_t depth = 1;          // units; 0: none
  int64_t micro_batches = 1;  // of a step
};

bool carry_gathers(ir::Graph& graph, const CarryGathersOptions& options, PassContext& ctx);

}  // namespace sfsdp::passes
