// SPDX-License-Identifier: BSD-3-Clause
// What:   canonical ops become the ops of LibTorch that they stand for: the graph that the reference executor runs.
// Why:    each op is then one call of eager's, so results and memory are eager's, bit for bit and byte for byte.
// How:    what a forward op made on its way and its gradient needs again, such as x · rstd of a norm, is made once, as in
//         eager; what remat computes again is not merged with what it repeats.
// Needs:  nothing.
// Leaves: no canonical op, no kernel (fuse).
#pragma once

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

bool decompose(ir::Graph& graph, PassContext& ctx);

// A copy of `graph` after decompose. Names of values stay, but for those that canonical ops alone had.
ir::Graph decomposed(const ir::Graph& graph);

}  // namespace sfsdp::passes
