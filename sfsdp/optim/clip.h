// SPDX-License-Identifier: BSD-3-Clause
// The step's loss, and the norm of all gradients with what they are multiplied by. Conventions:
// torch.nn.utils.clip_grad_norm_ with eps 1e-6; the norm counts every parameter once.
#pragma once

#include <vector>

#include "sfsdp/ir/builder.h"
#include "sfsdp/ir/graph.h"
#include "sfsdp/parallel/data_parallel.h"

namespace sfsdp::step {

struct Loss {
  ir::Value* mean = nullptr;
  ir::Value* count = nullptr;  // of the global batch, f64[]; null where the loss is a mean already
};

// Sums over micro-batches and ranks. A mean becomes a mean of equal shares, a sum is divided by the global count.
Loss reduce_loss(ir::Graph& graph, ir::Builder& build, const Strategy& strategy);

// f64[], of the ops `gradient`, whose attribute replicated= it takes.
ir::Value* append_norm(ir::Builder& build, const std::vector<ir::Op*>& gradients, const Strategy& strategy,
                       ir::Value* count);

// What gradients are multiplied by, for max_norm (0: none) and the count of the loss; nullptr: nothing.
ir::Value* append_coefficient(ir::Builder& build, const std::vector<ir::Op*>& gradients, ir::Value* norm,
                              ir::Value* count, double max_norm);

}  // namespace sfsdp::step
