// SPDX-License-Identifier: BSD-3-Clause
// What:   cuts each collective of forward and backward in two: its start, and a wait right behind.
// Why:    what stands between start and wait is overlapped; later passes move the two apart.
// Needs:  nothing.
// Leaves: no blocking collective in sections fwd, loss and bwd; order and numbers as before.
#pragma once

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

bool split_collectives(ir::Graph& graph, PassContext& ctx);

}  // namespace sfsdp::passes
