// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/optim/adam.h"

#include <string>

#include "sfsdp/optim/check_field.h"
#include "sfsdp/optim/update_builder.h"

namespace sfsdp {
namespace {

template <class Options>
void check_all(const std::string& name, const Options& o) {
  check_at_least_0((name + "::lr").c_str(), o.lr);
  check_decay((name + "::beta1").c_str(), o.beta1);
  check_decay((name + "::beta2").c_str(), o.beta2);
  check_field((name + "::eps").c_str(), o.eps, o.eps > 0, "a finite number above 0");
  check_at_least_0((name + "::weight_decay").c_str(), o.weight_decay);
  check_groups(o.groups);
}

template <class Options>
void build_adam(step::UpdateBuilder& build, const char* opcode, const ir::Op& param, ir::Value* gradient,
                const Options& o) {
  ir::Value* step = build.step();
  ir::Value* m = build.moment(param, "exp_avg");
  ir::Value* v = build.moment(param, "exp_avg_sq");
  build.update(opcode, param, {m, v}, gradient, {step, build.guard()},
               {{"beta1", o.beta1}, {"beta2", o.beta2}, {"eps", o.eps}},
               numbers_of(param.attr<std::string>("name"), o.groups, o.weight_decay));
}

}  // namespace

void check(const AdamW& o) { check_all("AdamW", o); }
void check(const Adam& o) { check_all("Adam", o); }

namespace step {

void build_update(UpdateBuilder& build, const ir::Op& param, ir::Value* gradient, const AdamW& o) {
  build_adam(build, "adamw", param, gradient, o);
}

void build_update(UpdateBuilder& build, const ir::Op& param, ir::Value* gradient, const Adam& o) {
  build_adam(build, "adam", param, gradient, o);
}

}  // namespace step
}  // namespace sfsdp
