// SPDX-License-Identifier: BSD-3-Clause
// What:   what chunk_loss does, of a loss in canonical ops, as partition leaves it.
// Why so: over cp and ep a rank has some of the rows, in blocks of each sample, so that chunks of the whole batch's rows would lie on
//         some ranks alone. Cut after partition, each rank computes chunks of its own rows: no row moves, and what a product or a
//         loss in parts sends is sent for each chunk. So chunks send no byte more, in `chunks` all_gathers in place of one.
// Needs:  a linear layer without bias, views, copies, collectives of another dimension than the rows, and the loss; the same back.
// Leaves: as chunk_loss.h says; the count of targets before the loss, and what reads the loss (its sum over ranks) after the last chunk.
#pragma once

#include <cstdint>

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/memory/rows_of_loss.h"

namespace sfsdp::passes {

// chunks: of equal rows of a rank's, the last one fewer; at least 2, and at most the rows
void chunk_rows_of_loss(ir::Graph& graph, const LossRows& loss, int64_t chunks);

}  // namespace sfsdp::passes
