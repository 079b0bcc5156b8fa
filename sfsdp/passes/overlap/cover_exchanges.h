// SPDX-License-Identifier: BSD-3-Clause
// What:   lets what does not depend on an exchange of rows (all_to_all_v) run under it: of the same block, what stands above its start and
//         is not needed by it comes after the start, and what stands below its wait and does not need it comes before the wait.
// Why:    tokens travel to their experts and back; shared experts, and the gradients of experts' weights, need not wait for them.
// Needs:  split_collectives.
// Leaves: the same ops, in another order. Exchanges that follow one another in a block and section share what stands below the first one,
//         in equal numbers of operations, as far as whole ops allow.
// Source: shared experts under the all-to-all, arXiv:2412.19437 section 3.2; Megatron-LM's moe_shared_expert_overlap.
#pragma once

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

bool cover_exchanges(ir::Graph& graph, PassContext& ctx);

}  // namespace sfsdp::passes
