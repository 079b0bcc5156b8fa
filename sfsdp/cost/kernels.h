// SPDX-License-Identifier: BSD-3-Clause
// Which ops one kernel computes, as the graph says it (kernel=N, by the pass fuse). An op that computes and names none is a
// kernel by itself.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_set>
#include <vector>

#include "sfsdp/ir/graph.h"

namespace sfsdp::cost {

struct Kernels {
  std::vector<std::vector<const ir::Op*>> ops;  // by kernel, in order
  std::vector<int> of;  // by position of the op in the graph; -1: it moves no data, or is a collective
};

Kernels kernels_of(const ir::Graph& graph);

// The op that says what a kernel's arithmetic is: its product or attention; nullptr if it has none.
const ir::Op* arithmetic_op(std::span<const ir::Op* const> kernel);

// Storages that never reach memory: one kernel alone makes and reads them, through views too. The graph's results, what is
// carried to the next step and sums over micro-batches are not among them.
std::unordered_set<const ir::Value*> values_inside(const ir::Graph& graph, const Kernels& kernels);

}  // namespace sfsdp::cost
