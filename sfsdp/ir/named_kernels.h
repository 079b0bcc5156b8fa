// SPDX-License-Identifier: BSD-3-Clause
// Kernels that a product, an attention or an op over rows may name (product_kernel=, attention_kernel=, row_kernel=): a library and
// what it calls it. Without the name the machine that runs the op chooses.
#pragma once

#include <array>
#include <string_view>

namespace sfsdp::ir {

// The attributes that name one.
inline constexpr std::array<const char*, 3> kKernelAttributes = {"product_kernel", "attention_kernel", "row_kernel"};

inline constexpr std::array<std::string_view, 8> kProductKernels = {"aten.mm",         "mkl.gemm",      "onednn.matmul",
                                                                    "onednn.brgemm",   "openblas.gemm", "cublas.gemm",
                                                                    "cublaslt.matmul", "cutlass.gemm"};
inline constexpr std::array<std::string_view, 2> kAttentionKernels = {"aten.flash", "sfsdp.flash"};
inline constexpr std::array<std::string_view, 2> kRowKernels = {"aten.ops", "sfsdp.rows"};

}  // namespace sfsdp::ir
