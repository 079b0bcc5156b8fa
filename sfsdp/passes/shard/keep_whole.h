// SPDX-License-Identifier: BSD-3-Clause
// What:   parameters stay whole from step to step: where a sharded param is gathered, a carried state is read instead,
//         and the gather moves after the param's update.
// Why:    ZeRO stages 1 and 2: the update is shared out over ranks, forward and backward read whole parameters without
//         waiting for them; a gather per step instead of one per use region and micro-batch.
// Needs:  blocking gathers (before split_collectives); at most one carry of each param.
// Leaves: no gather of a param; per gathered param a state `<param>.whole` with whole_of=<param>, in the gather's dtype.
//         It must hold the gathered param when the first step begins; after each step it does.
// Source: ZeRO, arXiv:1910.02054, section 5.
#pragma once

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

bool keep_whole(ir::Graph& graph, PassContext& ctx);

}  // namespace sfsdp::passes
