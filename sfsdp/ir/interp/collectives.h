// SPDX-License-Identifier: BSD-3-Clause
// Collectives on the arrays of all simulated ranks at once: the definition, not an algorithm.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/interp/array.h"

namespace sfsdp::ir::interp {

// Ranks count row-major over the mesh axes: the last axis varies fastest.
int64_t world_size(const Graph& graph);
int64_t coordinate(const Graph& graph, int64_t rank, const std::string& axis);
// The ranks that differ from `rank` in these axes only, in the order of `axes`, outer first; `rank` is one of them.
std::vector<int64_t> group_of(const Graph& graph, int64_t rank, std::span<const std::string> axes);
// The place of `rank` in its group.
int64_t axis_rank(const Graph& graph, int64_t rank, std::span<const std::string> axes);

// One array per rank in, one per rank out. Sums are added in group order, in double.
std::vector<Array> run_collective(const Graph& graph, const Op& op, std::span<const Array* const> operands);

}  // namespace sfsdp::ir::interp
