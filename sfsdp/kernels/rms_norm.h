// SPDX-License-Identifier: BSD-3-Clause
// RMSNorm (arXiv 1910.07467) of rows and its gradients, each row read from memory once. In float32, whatever x is: nothing is
// rounded in between, also where a model casts x · rstd before it multiplies by the weight. Torch-free.
#pragma once

#include <cstdint>

#include "sfsdp/ir/type.h"

namespace sfsdp::kernels {

// x, y, grad and grad_x: [rows, width], contiguous, of `dtype`; weight: [width], of `weight_dtype`. Both f32 or bf16.
struct RmsNorm {
  int64_t rows = 0, width = 1;
  ir::DType dtype = ir::DType::f32, weight_dtype = ir::DType::f32;
  double eps = 0;  // forward
  const void* x = nullptr;
  const void* weight = nullptr;  // null: ones
  void* y = nullptr;             // forward: x · rstd · weight
  float* rstd = nullptr;         // [rows]: (mean(x²) + eps)^-1/2, which forward writes and backward reads
  // Backward.
  const void* grad = nullptr;
  const float* residual = nullptr;  // [rows, width]: another part of grad_x, which is added; null: none
  void* grad_x = nullptr;           // null: not asked for
  float* grad_weight = nullptr;     // [blocks, width]: the parts of blocks of rows; null: not asked for
};

// Rows of a block, whose part of the weight's gradient is one: the order of its sum is the same on any number of threads.
inline constexpr int64_t kNormRows = 64;
int64_t norm_blocks(const RmsNorm& call);

// Blocks begin to end - 1 of y and rstd.
void rms_norm(const RmsNorm& call, int64_t begin, int64_t end);
// Blocks begin to end - 1 of grad_x and grad_weight.
void rms_norm_backward(const RmsNorm& call, int64_t begin, int64_t end);
// The weight's gradient, of `weight_dtype`, from the parts of all blocks.
void rms_norm_weight(const RmsNorm& call, void* grad_weight);

}  // namespace sfsdp::kernels
