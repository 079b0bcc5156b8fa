// SPDX-License-Identifier: BSD-3-Clause
// What:   writes group= on params whose linear layers read one activation (QKV; gate and up): the name of the first of them.
// Why:    `bucket` stores a group side by side without padding, so that the joined weight is a view of the gathered unit, and
//         join_products makes one product of several.
// Needs:  unit= on params, canonical ops.
// Leaves: params that a group could not take are counted by reason: left_bias, left_width (of another depth or dtype), left_shared (read by
//         other products too), left_apart (in another unit).
#pragma once

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

bool group_weights(ir::Graph& graph, PassContext& ctx);

}  // namespace sfsdp::passes
