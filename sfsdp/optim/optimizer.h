// SPDX-License-Identifier: BSD-3-Clause
// Loss, clipping and the optimizer as graph-building functions over shards. Torch-free.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/optim/adam.h"
#include "sfsdp/optim/expert_balance.h"
#include "sfsdp/optim/sgd.h"
#include "sfsdp/optim/update_builder.h"
#include "sfsdp/parallel/data_parallel.h"

namespace sfsdp {

using Optimizer = std::variant<AdamW, Adam, SGD>;

double learning_rate(const Optimizer& optimizer);
// Throws UserError naming the first field that is not finite or out of range, as "AdamW::beta1 = 2".
void check_optimizer(const Optimizer& optimizer);

namespace step {

struct UpdateOptions {
  double max_norm = 0;  // gradients are scaled to this global norm; 0: not clipped (the norm is still computed)
  // A norm that is not finite updates nothing: every update waits for the norm. false: no update does, if max_norm is 0.
  bool skip_non_finite = true;
  ExpertBalance balance = {};
};

// Appends loss reduction, norm, clipping and update to a graph that data_parallel has made a rank's own. Outputs become
// loss (mean of the global batch, f32[], or f64[] where it is), grad_norm (before clipping, f64[]), non_finite (f32[], 1: nothing was
// updated, if skip_non_finite). Throws UserError for a ParamGroup that matches no parameter.
std::vector<OptimizerState> append_update(ir::Graph& graph, const Optimizer& optimizer, const Strategy& strategy,
                                          const UpdateOptions& options);

// For a graph without backward: the loss, averaged over the ranks, is the only output.
void append_loss(ir::Graph& graph, const Strategy& strategy);

}  // namespace step
}  // namespace sfsdp
