// SPDX-License-Identifier: BSD-3-Clause
// Whether an op that a rank runs on one index of a dimension is one in the whole program, for layouts.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/plan/verify/row_layouts.h"

namespace sfsdp::plan {

// A dimension that is cut to one index a rank is as long as one that is whole and has one index: on a rank's sizes alone the second
// would pass for the first, or for one that is broadcast. The op's own rule of types (ir/shape_rules.h) says on the whole's sizes
// which operands are broadcast. An op whose row names no rule is not looked at.
//   graph:    whose mesh counts
//   operands, results: how they lie on the axis, as row_layouts has them
//   ranks:    of the axis
// Returns "" or what the rule says of the whole's sizes.
std::string wrong_at_whole_sizes(const ir::Graph& graph, const ir::Op& op, const std::vector<Layout>& operands,
                                 const std::vector<Layout>& results, int64_t ranks);

}  // namespace sfsdp::plan
