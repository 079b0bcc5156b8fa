// SPDX-License-Identifier: BSD-3-Clause
// Gradient descent with momentum.
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

// torch.optim.SGD without dampening and Nesterov.
struct SGD {
  double lr = 1e-3;
  double momentum = 0;
  double weight_decay = 0;  // of the parameter, added to the gradient
  std::vector<ParamGroup> groups = {};
};

// Throws UserError naming the first field out of range, as "SGD::lr = -1".
void check(const SGD& optimizer);

namespace step {

// Adds the update of one parameter by its gradient.
void build_update(UpdateBuilder& build, const ir::Op& param, ir::Value* gradient, const SGD& optimizer);

}  // namespace step
}  // namespace sfsdp
