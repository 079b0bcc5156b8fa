// SPDX-License-Identifier: BSD-3-Clause
// What:   inside=[k, ...] on a pack: operands that the kernels which make them write into its buffer, at their offsets, in
//         its dtype. Their casts join those kernels. A pack with nothing left to copy is no kernel.
// Why:    a gradient is written once. A copy reads and writes all gradients once more, with half as many bytes again where
//         the reduction has another dtype.
// Rule:   an operand that the pack alone reads, as it was made. The bucket is in memory from the first of them on, so what
//         is made early is copied where the step's peak would grow by more than a thousandth: by the lifetimes of all buffers.
// Needs:  fuse with scope=all: kernels in their order.
// Leaves: plan/verify/hazards.h proves the places.
#pragma once

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

bool write_in_buckets(ir::Graph& graph, PassContext& ctx);

}  // namespace sfsdp::passes
