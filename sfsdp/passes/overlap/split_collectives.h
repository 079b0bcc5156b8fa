// SPDX-License-Identifier: BSD-3-Clause
// What:   cuts each collective of forward and backward in two: its start, and a wait right after it.
// Why:    what stands between start and wait is overlapped; later passes move the two apart.
// Needs:  nothing.
// Leaves: no blocking collective in sections fwd, loss and bwd; order and numbers as before.
#pragma once

#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

// Cuts these in two, whatever their section. Deletes them.
void split_blocking(ir::Graph& graph, const std::vector<ir::Op*>& blocking);

bool split_collectives(ir::Graph& graph, PassContext& ctx);

}  // namespace sfsdp::passes
