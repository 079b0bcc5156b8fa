// SPDX-License-Identifier: BSD-3-Clause
// The ops that make a value lie otherwise on one axis, for partition. Works on the whole's sizes.
#pragma once

#include <cstdint>
#include <string>

#include "sfsdp/ir/builder.h"
#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/placement.h"
#include "sfsdp/parallel/localise.h"

namespace sfsdp::parallel {

// Whether the parts of a cut dimension are head and tail (ContextParallelOptions::load_balance), of the value and of what it is made.
struct HeadAndTail {
  bool before = false, after = false;
};

// An all_gather of what is cut, an all_to_all where it is to be cut in another dimension, a reduce_scatter or all_reduce of a
// summand, own_part of what is whole. The first and the third exchange what lies together in memory: a dimension that others stand
// before is brought to the front and back, which is one copy.
//   to:         whole, or cut in a dimension that the axis divides, another one than `from`
//   placements: of the graph's values; those that are made are added
//   balanced:   what is whole is in its natural order all the same
//   returns:    the value, named after `value`, in memory in the order in which `value` lies there, without gaps
ir::Value* redistribute(const ir::Builder::Place& place, ir::Value* value, const MeshAxis& axis,
                        const ir::Placement& from, const ir::Placement& to, Placements& placements,
                        HeadAndTail balanced = {});

// The value with its dimensions in the order in which they lie in memory, contiguous: a view, where it has no gaps. `placement` becomes
// that of what is returned.
ir::Value* in_memory_order(const ir::Builder::Place& place, ir::Value* value, ir::Placement& placement,
                           Placements& placements);
// And back: what in_memory_order has made of a value like `like`, which lies so, with that one's dimensions. A view.
ir::Value* out_of_memory_order(const ir::Builder::Place& place, ir::Value* flat, const ir::Value& like,
                               const ir::Placement& placement, const std::string& name, Placements& placements);

// The value of the rank `shift` before on the axis, around its end, by one permute.
//   placement: of `value` and of what is returned, which lies in memory as redistribute says
ir::Value* pass_on(const ir::Builder::Place& place, ir::Value* value, const MeshAxis& axis,
                   const ir::Placement& placement, int64_t shift, const std::string& name, Placements& placements);

// Whether one exchange makes of what is cut in a dimension what is cut in another one.
bool moves_by_exchange(const ir::Value& value, const ir::Placement& from, const ir::Placement& to);

// Bytes that pass a rank; a copy is little beside them. Nothing makes summands of a value. To gather a parameter that the user has cut
// is the last resort, however small it is.
//   ranks:   that exchange what is cut in one dimension for what is cut in another; 0: it is gathered
//   returns: infinity where nothing makes it
double redistribution_cost(const ir::Value& value, const ir::Placement& from, const ir::Placement& to, int64_t ranks);

}  // namespace sfsdp::parallel
