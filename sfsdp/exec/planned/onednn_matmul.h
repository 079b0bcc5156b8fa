// SPDX-License-Identifier: BSD-3-Clause
// oneDNN's product, as LibTorch has it inside. On processors that MKL does not know it is two to three times as fast in float32
// (docs/benchmarks.md, "Products by library").
#pragma once

#include <ATen/core/Tensor.h>

namespace sfsdp::exec {

// Whether this LibTorch offers it on the processor that this runs on: none without AVX-512 has been seen to.
bool has_onednn_matmul();

// out = beta · out + a · b.
//   a, b, out: [m, k], [k, n], [m, n], of one dtype, float32 or bfloat16; a and b row-major or transposed, out row-major
void onednn_matmul(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, float beta);

// Whether products of this dtype are faster by it than by at::mm, on the processor that this runs on: MKL takes its fast kernels on
// Intel's alone.
bool prefers_onednn_matmul(at::ScalarType dtype);

}  // namespace sfsdp::exec
