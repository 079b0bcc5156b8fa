// SPDX-License-Identifier: BSD-3-Clause
// Which forward values of many blocks to make again so that what is kept fits a budget: each block's trade-off of bytes
// against work by remat_cut.h, solved once for blocks that are alike, then over all blocks the steps that save most
// bytes per work first (the knapsack of their convex hulls, optimal up to the last step taken).
#pragma once

#include <span>
#include <unordered_set>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/memory/remat_cut.h"

namespace sfsdp::passes {

struct BlockValues {
  CutProblem problem;
  std::vector<const ir::Value*> values;  // of the graph, by their number in the problem
};

// own:    storages of forward that only this block reads, in the order they are made
// needed: storages that backward reads
// flops_per_byte: RematOptions::flops_per_byte
BlockValues pose(const std::vector<const ir::Value*>& own, const std::unordered_set<const ir::Value*>& needed,
                 double flops_per_byte);

// Values to make again: the kept ones have at most `budget` (0 … 1) of the bytes that backward would read of these blocks.
// A larger budget never keeps fewer bytes and never makes again what a smaller one keeps from running.
std::vector<const ir::Value*> choose_within_budget(std::span<const BlockValues> blocks, double budget);

}  // namespace sfsdp::passes
