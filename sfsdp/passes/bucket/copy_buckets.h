// SPDX-License-Identifier: BSD-3-Clause
// What:   merges the gathers of a unit's parameters, and the reductions of their gradients, where each parameter is
//         stored by itself (layout dim0): what is sent is copied into one buffer, what arrives is copied out of it.
// Why:    a collective per parameter is mostly latency. Who wants FSDP2's shards on every rank pays for them with these
//         copies, as FSDP2 does; flat storage (pass bucket) has none.
// Needs:  unit= on params (pass wrap), blocking collectives as data parallelism left them.
// Leaves: per unit, region, kind, communicator and dtype one collective. A parameter is copied out of the gathered
//         buffer where it is first read; a shard of a reduced gradient is a view. The same bits: every element is
//         gathered as before, and summed over the same ranks in the same order.
// Source: FSDP2's all_gather_copy_in, split_with_sizes_copy and chunk_cat (torch/distributed/fsdp).
#pragma once

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

bool copy_buckets(ir::Graph& graph, PassContext& ctx);

}  // namespace sfsdp::passes
