// SPDX-License-Identifier: BSD-3-Clause
// What:   every carried value ends in the memory of the value that it replaces: the op that makes it writes there (donates=), or
//         `store` copies it there.
// Why:    at fixed addresses nothing is handed over between steps, or from one micro-batch to the next: what the next one reads
//         must lie where it looks.
// Needs:  the final order of all ops that compute.
// Leaves: through donations, what each carry hands on has the memory of what it replaces.
#pragma once

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

// throws: UserError for a value that is still needed once it is replaced: the step returns it, or it is read after the
//         micro-batches of which each replaces it
bool keep_in_place(ir::Graph& graph, PassContext& ctx);

}  // namespace sfsdp::passes
