// SPDX-License-Identifier: BSD-3-Clause
// What:   lets backward compute again what forward would have to keep (activation checkpointing).
// Why:    activations are most of a step's memory; most of them cost little to compute again.
// Needs:  the step before buckets are formed. A gather that a repeated op needs is repeated too, where backward gathers
//         parameters again: bucket merges it with the one that backward has. Else what forward gathered stays.
// Leaves: no op of backward reads a forward value that was not to be kept; the repeated ops stand before the first op
//         that needs them, in section bwd. The same ops on the same values: every number has the same bits, random ones
//         too (they draw by path and element).
// Source: TorchTitan's activation_checkpoint: full, selective every k-th block, selective per op with its save list,
//         memory_budget. Under a budget no list says what is cheap: see remat_cut.h. PyTorch solves the same problem
//         for one graph by a cut and a knapsack of the ops that the cut may not touch.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

enum class RematMode : uint8_t {
  None,
  Full,          // of each block (module with a number: layers.3) only what it is given is kept
  Op,            // results of a list (remat_list.h) are kept, all else of a block is computed again
  MemoryBudget,  // as RematOptions::memory_budget says
};
std::string to_string(RematMode mode);

struct RematOptions {
  RematMode mode = RematMode::None;
  int64_t every = 1;        // Full, Op: only every k-th block; the others keep everything
  std::string blocks = {};  // paths of the only blocks that are computed again, with commas; "": of all of them
  int64_t mm_again = 0;     // Op: every k-th product of a block is computed again too; 0: none (TorchTitan: 2)
  // Op: names, with commas. mm_again_of: products of modules whose path holds one of them, and all whose right operand has
  // the shape of one of theirs, are computed again. save: ops and modules of a block, what is kept instead of products and attention.
  std::string mm_again_of = {}, save = {};
  // MemoryBudget: at most this share of the bytes that mode None keeps of blocks beyond mode Full, by the least work;
  // 0: as full, 1: as none.
  double memory_budget = 0.5;
  // memory_budget: work of a byte that is written again, in floating point operations of a product. tune/ puts the
  // machine's flops over its bandwidth here; 277, an H100's of its data sheet, where no machine is named.
  double flops_per_byte = 277;

  static const std::vector<Field<RematOptions>>& fields();
};

// Counts in ctx.metrics: blocks, ops_repeated, flops_repeated (of products and attention), bytes_not_kept (of what is
// computed again), bytes_kept (made by forward, read by backward).
bool remat(ir::Graph& graph, const RematOptions& options, PassContext& ctx);

// Throws InternalError where an op of backward reads memory of `not_kept`, or where one of `repeated` stands before
// anything that needs it. The pass calls it on its own result.
void expect_repeated(const ir::Graph& graph, const std::unordered_set<const ir::Value*>& not_kept,
                     const std::unordered_set<const ir::Op*>& repeated);

}  // namespace sfsdp::passes
