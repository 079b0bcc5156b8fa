// SPDX-License-Identifier: BSD-3-Clause
// What:   where a rank's experts have room for some rows (all_to_all_v room=), makes the rounds after the first: a loop after what the first
//         one leaves, which does the same of the rows of the next rounds and adds it. Its number of trips is that of the rank with the most
//         rows, read in memory; where all have room it is 0.
// Why:    no row is dropped, and no buffer has room for all rows on one rank. Only uneven choices of experts take time.
// Needs:  all that moves, merges or fuses ops has been done: no pass knows loops.
// Leaves: of each mixture a loop in forward, and in backward one or more, as what they make is read. A body makes rows again: tokens are
//         sent again, and what products of forward made of them is computed again, also where backward reads what the first round kept.
#pragma once

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

//   throws: UserError naming op and module path where what a round leaves cannot be carried by a loop
bool further_rounds(ir::Graph& graph, PassContext& ctx);

}  // namespace sfsdp::passes
