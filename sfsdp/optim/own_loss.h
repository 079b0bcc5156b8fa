// SPDX-License-Identifier: BSD-3-Clause
// The loss of a rank's own samples, before ranks add theirs up: where a graph has it.
#pragma once

#include <cstdint>

#include "sfsdp/ir/graph.h"

namespace sfsdp::step {

// The rank's loss is sum · factor, or sum / count where the step divides by a count.
struct OwnLoss {
  const ir::Value* sum = nullptr;
  const ir::Value* count = nullptr;  // null: the loss is a mean
  double factor = 1;
};

//   graph: with the loss as its first output, as append_update and append_loss leave it, whatever passes ran since
OwnLoss own_loss(const ir::Graph& graph, int64_t data_ranks);

}  // namespace sfsdp::step
