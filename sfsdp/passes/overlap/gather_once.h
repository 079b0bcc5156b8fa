// SPDX-License-Identifier: BSD-3-Clause
// What:   a param that forward alone gathers is gathered once per step: the start goes before the first micro-batch, the
//         wait stays where forward first reads the param.
// Why:    ZeRO stages 1 and 2: the update is shared out over ranks, forward and backward read whole params; gathers run
//         under the forward of earlier units, one per step instead of one per micro-batch.
// Needs:  gathers in two halves (split_collectives).
// Leaves: starts of such gathers, with the casts and packs that make what they send, stand above all sections, in the
//         order in which they are waited for. A param that backward gathers again stays as it is.
// Source: ZeRO, arXiv:1910.02054, section 5; Megatron-LM's overlap-param-gather.
#pragma once

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

bool gather_once(ir::Graph& graph, PassContext& ctx);

}  // namespace sfsdp::passes
