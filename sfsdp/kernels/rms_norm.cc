// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/kernels/rms_norm.h"

#include "sfsdp/base/half.h"
#include "sfsdp/kernels/family.h"

namespace sfsdp::kernels {

int64_t norm_blocks(const RmsNorm& call) { return (call.rows + kNormRows - 1) / kNormRows; }

void rms_norm(const RmsNorm& call, int64_t begin, int64_t end) { family().rms_norm(call, begin, end); }

void rms_norm_backward(const RmsNorm& call, int64_t begin, int64_t end) {
  family().rms_norm_backward(call, begin, end);
}

void rms_norm_weight(const RmsNorm& call, void* grad_weight) {
  for (int64_t i = 0; i < call.width; ++i) {
    double sum = 0;
    for (int64_t block = 0; block < norm_blocks(call); ++block) sum += call.grad_weight[block * call.width + i];
    if (call.weight_dtype == ir::DType::f32)
      static_cast<float*>(grad_weight)[i] = static_cast<float>(sum);
    else
      static_cast<uint16_t*>(grad_weight)[i] = to_bf16(static_cast<float>(sum));
  }
}

}  // namespace sfsdp::kernels
