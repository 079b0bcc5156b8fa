// SPDX-License-Identifier: BSD-3-Clause
// What makes the operand of a collective for it alone, and so can go where its start goes.
#pragma once

#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/index.h"

namespace sfsdp::passes {

// Adds the casts and packs that make `value` out of what is given to the graph, in order, and that nothing else reads.
// Returns whether that is all that makes it; if not, some may have been added.
bool add_own(const ir::Index& index, const ir::Value* value, std::vector<ir::Op*>& own);

}  // namespace sfsdp::passes
