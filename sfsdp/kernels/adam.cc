// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/kernels/adam.h"

#include <cmath>

#include "sfsdp/kernels/family.h"

namespace sfsdp::kernels {

void adam(const Adam& call) {
  const AdamFactors factors = {
      .decay = static_cast<float>(call.decoupled ? 1 - call.lr * call.weight_decay : call.weight_decay),
      .first = static_cast<float>(call.beta1),
      .rest_of_first = static_cast<float>(1 - call.beta1),
      .second = static_cast<float>(call.beta2),
      .rest_of_second = static_cast<float>(1 - call.beta2),
      .eps = static_cast<float>(call.eps),
      .size = static_cast<float>(call.lr / (1 - std::pow(call.beta1, call.step))),
      .root = static_cast<float>(std::sqrt(1 - std::pow(call.beta2, call.step)))};
  family().adam(call, factors);
}

}  // namespace sfsdp::kernels
