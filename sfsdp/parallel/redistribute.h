// SPDX-License-Identifier: BSD-3-Clause
// The ops that make a value lie otherwise on one axis, for partition. Works on the whole's sizes.
#pragma once

#include "sfsdp/ir/builder.h"
#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/placement.h"
#include "sfsdp/parallel/localise.h"

namespace sfsdp::parallel {

// An all_gather of what is cut, a reduce_scatter or all_reduce of a summand, own_part of what is whole. Communicators exchange
// what lies together in memory: a dimension that others stand before is brought to the front and back, which is one copy.
//   to:         whole, or, unless `from` is cut, cut in a dimension that the axis divides
//   placements: of the graph's values; those that are made are added
//   balanced:   the parts of a cut dimension are head and tail (ContextParallelOptions::load_balance); what is whole is in its
//               natural order all the same
//   returns:    the value, named after `value`, in memory in the order in which `value` lies there, without gaps
ir::Value* redistribute(const ir::Builder::Place& place, ir::Value* value, const MeshAxis& axis,
                        const ir::Placement& from, const ir::Placement& to, Placements& placements,
                        bool balanced = false);

}  // namespace sfsdp::parallel
