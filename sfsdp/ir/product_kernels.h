// SPDX-License-Identifier: BSD-3-Clause
// Kernels that a product may name (product_kernel=): a library and what it calls it. Without the name the machine that runs the
// product chooses.
#pragma once

#include <array>
#include <string_view>

namespace sfsdp::ir {

inline constexpr std::array<std::string_view, 7> kProductKernels = {
    "aten.mm", "mkl.gemm", "onednn.matmul", "onednn.brgemm", "cublas.gemm", "cublaslt.matmul", "cutlass.gemm"};

}  // namespace sfsdp::ir
