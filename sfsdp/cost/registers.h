// SPDX-License-Identifier: BSD-3-Clause
// What a fused kernel keeps to itself: values that never reach memory.
#pragma once

#include <unordered_set>

#include "sfsdp/cost/op_cost.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::cost {

// Values that one kernel of `kernels` makes and that this kernel alone reads; the graph's results are not among them.
//   kernels: form_kernels of the same graph
std::unordered_set<const ir::Value*> values_in_registers(const ir::Graph& graph, const KernelTable& kernels);

}  // namespace sfsdp::cost
