// SPDX-License-Identifier: BSD-3-Clause
// Clipping and the optimizer as graph-building functions over shards. Torch-free.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/parallel/data_parallel.h"

namespace sfsdp {

// torch.optim.AdamW: decoupled decay of all parameters, bias corrections from the step count. Moments have the dtype of
// the stored parameter, as PyTorch's do: store f32 and compute in bf16 (MixedPrecisionPolicy) for updates that bf16 would
// round away.
struct AdamW {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
};

// torch.optim.SGD without dampening and Nesterov.
struct SGD {
  double lr = 1e-3;
  double momentum = 0;
  double weight_decay = 0;
};

using Optimizer = std::variant<AdamW, SGD>;

double learning_rate(const Optimizer& optimizer);
// Throws UserError naming the first field that is not finite or out of range, as "AdamW::beta1 = 2".
void check_optimizer(const Optimizer& optimizer);

namespace step {

struct UpdateOptions {
  double max_norm = 0;  // gradients are scaled to this global norm; 0: not clipped (the norm is still computed)
  // A norm that is not finite updates nothing: every update waits for the norm. false: no update does, if max_norm is 0.
  bool skip_non_finite = true;
};

// A tensor that the optimizer carries, zero at first.
struct OptimizerState {
  std::string name;   // "layers.0.wq.weight.exp_avg"; "optimizer.step" counts updates
  std::string param;  // empty for the counter
};

// Appends loss reduction, norm, clipping and update to a graph that data_parallel has made a rank's own. Outputs become
// loss (mean of the global batch, f32[], or f64[] where it is), grad_norm (before clipping, f64[]), non_finite (f32[], 1: nothing was
// updated, if skip_non_finite). Conventions: torch.nn.utils.clip_grad_norm_ with eps 1e-6; the norm counts every parameter once.
std::vector<OptimizerState> append_update(ir::Graph& graph, const Optimizer& optimizer, const Strategy& strategy,
                                          const UpdateOptions& options);

// For a graph without backward: the loss, averaged over the ranks, is the only output.
void append_loss(ir::Graph& graph, const Strategy& strategy);

}  // namespace step
}  // namespace sfsdp
