// SPDX-License-Identifier: BSD-3-Clause
// What:   a cast of what a gather results in becomes a cast of the shard, in front of the gather.
// Why:    the wire then carries the smaller dtype, and the cast touches a rank's share only. data_parallel does so for
//         MixedPrecisionPolicy; this is for models that cast their weights themselves.
// Needs:  gathers that are not split into start and wait.
// Leaves: no value all of whose gathers are read by nothing but casts to one dtype of fewer bytes.
// Source: a cast is element by element, so it commutes with moving elements, bit for bit.
#pragma once

#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

// All gathers of a value or none: pass bucket wants a parameter gathered in one dtype.
bool hoist_casts(ir::Graph& graph, PassContext& ctx);  // true: changed

}  // namespace sfsdp::passes
