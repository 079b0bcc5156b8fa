// SPDX-License-Identifier: BSD-3-Clause
// What:   lets backward compute again what forward would have to keep (activation checkpointing).
// Why:    activations are most of a step's memory; most of them cost little to compute again.
// Needs:  the step before buckets are formed. A gather that a repeated op needs is repeated too; bucket merges it with
//         the one that backward has.
// Leaves: no op of backward reads a forward value that was not to be kept; the repeated ops stand before the first op
//         that needs them, in section bwd. The same ops on the same values: every number has the same bits, random ones
//         too (they draw by path and element).
// Source: TorchTitan's activation_checkpoint: full, selective every k-th block, selective per op with its save list,
//         memory_budget. Under a budget no list says what is cheap: see recompute_cut.h. PyTorch solves the same problem
//         for one graph by a cut and a knapsack of the ops that the cut may not touch.
#pragma once

#include <cstdint>
#include <string>

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

struct RematOptions {
  // "none"; "full": of each block (module with a number: layers.3) only what it is given is kept; "op": results of
  // products and attention are kept, all else of a block is computed again; "memory_budget": as memory_budget says.
  // "auto": none of this pass; Program replaces it by what choose_remat finds.
  std::string mode = "none";
  int64_t every = 1;     // full, op: only every k-th block; the others keep everything
  int64_t mm_again = 0;  // op: every k-th product of a block is computed again too; 0: none (TorchTitan: 2)
  // memory_budget: at most this share of the bytes that mode none keeps of blocks beyond mode full, by the least work;
  // 0: as full, 1: as none.
  double memory_budget = 0.5;
};

// Counts in ctx.metrics: blocks, ops_repeated, flops_repeated (of products and attention), bytes_not_kept (of what is
// computed again), bytes_kept (made by forward, read by backward).
bool remat(ir::Graph& graph, const RematOptions& options, PassContext& ctx);

}  // namespace sfsdp::passes
