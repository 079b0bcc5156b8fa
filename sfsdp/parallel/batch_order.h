// SPDX-License-Identifier: BSD-3-Clause
// What:   finds where the batch lies in what a random op draws, so that any mesh draws the same numbers.
// Why:    an element's number is its place in the value of the global batch, of which a graph shows one rank's part.
// How:    the step is captured once more with several times the rows. A dimension that has grown by that factor holds the
//         batch; what has not grown has none, and is drawn alike everywhere. No rule for any op is needed, and sizes
//         that are plain numbers in the model's code are told apart. docs/decisions/0003-batch-order.md
#pragma once

#include <cstdint>
#include <string>

#include "sfsdp/ir/graph.h"

namespace sfsdp::parallel {

// A prime above 3 that divides no dimension of any value of the graph: rows · it are seen wherever they go.
int64_t growth_factor(const ir::Graph& graph);

// Gives each op of `graph` with attribute `stream` (exec::number_random_ops) what its elements' numbers need:
//   replicated=true   the value has no batch: all ranks and micro-batches draw the same
//   outer=            elements before the batch in row-major order, where there are several: [T, B, C] has T
//   grown: the same step with `factor` times the rows in every tensor of the batch, its random ops numbered too
// Returns "" or what cannot be told, naming the first such op; that keeps the order of a value whose dimension 0 is the
// batch.
std::string order_draws(ir::Graph& graph, const ir::Graph& grown, int64_t factor);

}  // namespace sfsdp::parallel
