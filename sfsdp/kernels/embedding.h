// SPDX-License-Identifier: BSD-3-Clause
// The gradient of an embedding's weight. Torch-free.
#pragma once

#include <cstdint>
#include <vector>

#include "sfsdp/ir/type.h"

namespace sfsdp::kernels {

struct EmbeddingGrad {
  int64_t rows = 0, width = 1;  // of the gradient
  int64_t num_weights = 0;
  int64_t first = 0, whole = 0;  // out is of the ids from `first` on, of `whole`, others are passed over; 0: of all
  int64_t padding = -1;          // an id whose row is 0; -1: none
  const int64_t* ids = nullptr;  // [rows], 0 to num_weights - 1, or to whole - 1
  const void* grad = nullptr;    // [rows, width], contiguous
  ir::DType grad_dtype = ir::DType::f32;  // f32 or bf16
  void* out = nullptr;                    // [num_weights, width], contiguous
  ir::DType out_dtype = ir::DType::f32;   // f32 or bf16
};

// Each row of the weight's gradient is the sum of the rows of its id, in their order, in float32; rounded once.
//   order: scratch, kept by the caller
void embedding_backward(const EmbeddingGrad& call, std::vector<int64_t>& order);

}  // namespace sfsdp::kernels
