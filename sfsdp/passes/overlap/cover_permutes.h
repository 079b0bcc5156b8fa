// SPDX-License-Identifier: BSD-3-Clause
// What:   waits for each permute where what it brings is first read, and starts it one attention before the one that reads it, where it
//         does not depend on that; where it is a product of rows of another rank, before those of the rows that come before them.
// Why:    in ring attention the next rank's keys and values travel while attention to those of this one is computed; gradients travel
//         home meanwhile too. So do the next rank's rows while products of this one's are computed (pipeline_products).
// Needs:  split_collectives.
// Leaves: the same ops, in another order. What a permute brings is in flight during one attention, so that there are never more than
//         two ranks' keys and values; in flight during the products of one rank's rows, all of which stand together.
// Source: Ring Attention, arXiv:2310.01889, section 3.
#pragma once

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

bool cover_permutes(ir::Graph& graph, PassContext& ctx);

}  // namespace sfsdp::passes
