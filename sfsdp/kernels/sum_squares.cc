// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/kernels/sum_squares.h"

#include "sfsdp/base/check.h"
#include "sfsdp/kernels/family.h"

namespace sfsdp::kernels {

double sum_squares(const void* data, ir::DType dtype, int64_t count) {
  SFSDP_CHECK(dtype == ir::DType::f32 || dtype == ir::DType::bf16, "sum of squares of ", ir::to_string(dtype));
  return family().sum_squares(data, dtype == ir::DType::f32, count);
}

}  // namespace sfsdp::kernels
