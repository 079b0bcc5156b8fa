// SPDX-License-Identifier: BSD-3-Clause
// Rotary embedding (arXiv 2104.09864) of rows, and its inverse, which is its gradient. In float32, whatever x is. Torch-free.
#pragma once

#include <cstdint>

#include "sfsdp/ir/type.h"

namespace sfsdp::kernels {

inline constexpr int kRopeDims = 6;  // at most, of rows

// Elements at data + Σ index[d] · strides[d], and further ones side by side.
struct RopeRows {
  const void* data = nullptr;
  int64_t strides[kRopeDims] = {};  // in elements; 0 where what it holds is the same for all
};

// Pairs of a row of 2 · `pairs` elements are turned: neighbours (2j, 2j + 1), or halves (j, j + pairs).
struct Rope {
  int64_t sizes[kRopeDims] = {1, 1, 1, 1, 1, 1};  // of the dimensions of rows
  int64_t pairs = 0;
  bool halves = false;
  bool inverse = false;
  bool full = false;     // of halves: cos and sin have a number for each element, not for each pair
  bool complex = false;  // cos holds (cos, sin) of each pair, f32, its strides count such numbers; sin is not read
  ir::DType dtype = ir::DType::f32, angle_dtype = ir::DType::f32;  // f32 or bf16
  RopeRows x, cos, sin, out;                                       // out may be x
};

int64_t rope_rows(const Rope& call);
// Rows begin to end - 1, the last dimension of `sizes` being the innermost.
void rope(const Rope& call, int64_t begin, int64_t end);

}  // namespace sfsdp::kernels
