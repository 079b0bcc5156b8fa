// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/optim/sgd.h"

#include <string>

#include "sfsdp/optim/check_field.h"
#include "sfsdp/optim/update_builder.h"

namespace sfsdp {

void check(const SGD& o) {
  check_at_least_0("SGD::lr", o.lr);
  check_decay("SGD::momentum", o.momentum);
  check_at_least_0("SGD::weight_decay", o.weight_decay);
  check_groups(o.groups);
}

namespace step {

void build_update(UpdateBuilder& build, const ir::Op& param, ir::Value* gradient, const SGD& o) {
  ir::Value* momentum = o.momentum != 0 ? build.moment(param, "momentum_buffer") : nullptr;
  build.update("sgd", param, {momentum}, gradient, {build.guard()}, {{"momentum", o.momentum}},
               numbers_of(param.attr<std::string>("name"), o.groups, o.weight_decay));
}

}  // namespace step
}  // namespace sfsdp
