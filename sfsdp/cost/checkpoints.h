// SPDX-License-Identifier: BSD-3-Clause
// What a checkpoint of PyTorch computes again although backward reads none of it.
#pragma once

#include <unordered_map>
#include <vector>

#include "sfsdp/ir/graph.h"

namespace sfsdp::cost {

// Ops of forward by the op of backward after which a checkpoint that runs its whole block again runs them too: reentrant
// ones do, and those with early_stop = false. They are what our backward leaves out of a block that it computes again: the
// last product and its sum.
std::unordered_map<const ir::Op*, std::vector<const ir::Op*>> run_again_unread(const ir::Graph& graph);

}  // namespace sfsdp::cost
