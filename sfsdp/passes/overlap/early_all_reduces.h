// SPDX-License-Identifier: BSD-3-Clause
// What:   starts what is reduced once per step (all-reduces over replicas, of gradients and of the loss) as soon as what
//         it reads is there, and orders the tail (clip, opt) so that nothing waits longer than it must.
// Why:    after backward, blocking all-reduces in a row are all exposed.
// Needs:  nothing; after sink_waits the reduce-scatter that an all-reduce reads has been waited for as late as allowed.
// Leaves: no blocking collective in the tail that something could run under; each all-reduce of what forward and backward
//         leave starts in their section, right after the op it reads; of several micro-batches in the last (once=true),
//         where the sums are complete. After that: wait and gradient, bucket by bucket, in the order in which the
//         reductions start, and right after them the update, if it reads no other bucket's gradient; updates that a norm
//         holds back come after it, in the same order.
#pragma once

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

bool early_all_reduces(ir::Graph& graph, PassContext& ctx);

}  // namespace sfsdp::passes
