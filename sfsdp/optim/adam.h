// SPDX-License-Identifier: BSD-3-Clause
// Adam, and AdamW with its decoupled decay. Moments have the dtype of the stored parameter, as PyTorch's do: store f32 and
// compute in bf16 (MixedPrecisionPolicy) for updates that bf16 would round away.
// Source: arXiv:1412.6980; AdamW arXiv:1711.05101; torch.optim's fused kernels.
#pragma once

#include <vector>

#include "sfsdp/optim/param_groups.h"

namespace sfsdp::ir {
class Op;
class Value;
}  // namespace sfsdp::ir

namespace sfsdp {

namespace step {
class UpdateBuilder;
}

// torch.optim.AdamW: every step multiplies parameters by 1 - lr * weight_decay.
struct AdamW {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  std::vector<ParamGroup> groups = {};
};

// torch.optim.Adam: weight_decay * parameter is added to the gradient, and so to the moments.
struct Adam {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  std::vector<ParamGroup> groups = {};
};

// Throws UserError naming the first field out of range, as "AdamW::beta1 = 2".
void check(const AdamW& optimizer);
void check(const Adam& optimizer);

namespace step {

// Adds the update of one parameter by its gradient.
void build_update(UpdateBuilder& build, const ir::Op& param, ir::Value* gradient, const AdamW& optimizer);
void build_update(UpdateBuilder& build, const ir::Op& param, ir::Value* gradient, const Adam& optimizer);

}  // namespace step
}  // namespace sfsdp
