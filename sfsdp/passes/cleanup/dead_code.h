// SPDX-License-Identifier: BSD-3-Clause
// What:   removes ops whose results nobody reads.
// Why:    other passes leave them; a dead all_gather would still cost its bytes.
// Needs:  nothing.
// Leaves: every op is read by an op, an output or a carry, or is there for another reason: a root, or not pure.
#pragma once

#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

bool dead_code(ir::Graph& graph, PassContext& ctx);  // true: changed

}  // namespace sfsdp::passes
