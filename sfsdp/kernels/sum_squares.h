// SPDX-License-Identifier: BSD-3-Clause
// The sum of squares of a gradient, as its norm needs it. Torch-free.
#pragma once

#include <cstdint>

#include "sfsdp/ir/type.h"

namespace sfsdp::kernels {

// In float64. The squares of f32 and of bf16 are exact there and 32 sums run side by side, so that every processor has the same
// bits.
//   data: [count], contiguous
//   dtype: f32 or bf16
double sum_squares(const void* data, ir::DType dtype, int64_t count);

}  // namespace sfsdp::kernels
