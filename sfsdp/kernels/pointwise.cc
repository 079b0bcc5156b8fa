// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/kernels/pointwise.h"

#include "sfsdp/kernels/family.h"

namespace sfsdp::kernels {

void pointwise(const Pointwise& call, int64_t begin, int64_t end) {
  family().pointwise({call.inputs.data(), static_cast<int64_t>(call.inputs.size()), call.steps.data(),
                      static_cast<int64_t>(call.steps.size()), call.outputs.data(),
                      static_cast<int64_t>(call.outputs.size()), begin, end});
}

}  // namespace sfsdp::kernels
