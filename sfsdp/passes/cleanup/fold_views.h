// SPDX-License-Identifier: BSD-3-Clause
// What:   a view of a view becomes one view of the memory below (view of view, permute of permute), and a view that
//         changes nothing (t of t, view to the same shape) its operand. A write through a view of all of a tensor, as of
//         a bias that eager adds in place, becomes the value that is written.
// Why:    capture records every view that eager makes on its way; each costs a call in the executor, and hides from
//         other passes that two ops read the same.
// Needs:  nothing. What nobody reads any more is left to dead_code.
// Leaves: no view that reads a view of its own kind, none whose result is its operand.
// Source: algebra of permutations; of views of contiguous memory only, where every shape of as many elements fits.
#pragma once

#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

bool fold_views(ir::Graph& graph, PassContext& ctx);  // true: changed

}  // namespace sfsdp::passes
