// SPDX-License-Identifier: BSD-3-Clause
// What:   computes a pointwise op again inside the kernels that read its result, so that the result needs no memory.
// Why:    what backward reads of forward lies in memory all the while, and is written and read. silu(gate) beside gate and up,
//         which backward reads anyway, is a seventh of what a block of Llama keeps.
// Rule:   a pure pointwise op of forward that backward reads, all of whose readers outside of its kernel are pointwise ops that
//         read it element by element.
//         Its operands are in memory anyway where these kernels run, and reading them there moves no more bytes than the
//         result would: what it saves is its write, and a read in each kernel.
// Needs:  fuse with scope=all: kernels in their order.
// Leaves: no such result in memory. The same ops on the same values: every number has the same bits.
// Source: XLA duplicates cheap producers into the fusions that read them (instruction_fusion); PyTorch's partitioner computes
//         pointwise ops again in the kernels of backward (min_cut_rematerialization_partition).
#pragma once

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

// Counts in ctx.metrics: ops_repeated, bytes_not_kept (of the results that are not in memory any more).
bool remat_in_kernels(ir::Graph& graph, PassContext& ctx);

}  // namespace sfsdp::passes
