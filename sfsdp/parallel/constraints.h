// SPDX-License-Identifier: BSD-3-Clause
// Which values of a step the user's constraints name, for partition.
#pragma once

#include <cstdint>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/placement.h"
#include "sfsdp/parallel/tensor_parallel.h"

namespace sfsdp::parallel {

struct ConstrainedValue {
  const ir::Value* value = nullptr;
  ir::Placement placement;                 // whole, or cut in a dimension that the ranks divide
  const Constraint* constraint = nullptr;  // one of those given
};

// The results of the modules (TensorParallelOptions::constraints), each once.
//   ranks:  of the axis
//   throws: UserError for a constraint that names no module, or none whose values others read; and where a value has no such
//           dimension, or one that the ranks do not divide
std::vector<ConstrainedValue> find_constrained(const ir::Graph& graph, const std::vector<Constraint>& constraints,
                                               int64_t ranks);

}  // namespace sfsdp::parallel
