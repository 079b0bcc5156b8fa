// SPDX-License-Identifier: BSD-3-Clause
// Products of matrices by the libraries that this process has, as a plan names them (ir/named_kernels.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/ir/type.h"

namespace sfsdp::exec {

enum class ProductKernel : uint8_t { Aten, OneDnn, OpenBlas };

inline constexpr const char* kOpenBlasGemm = "openblas.gemm";
inline constexpr const char* kOneDnnMatmul = "onednn.matmul";
inline constexpr const char* kAtenMm = "aten.mm";

// By such a name, "" being LibTorch's too; nullopt: no library that is called here.
std::optional<ProductKernel> product_kernel(std::string_view name);
const char* to_string(ProductKernel kernel);
// With what last bits depend on beside the name: "openblas.gemm of 0.3.21 Cooperlake".
std::string described(ProductKernel kernel);
bool has_product(ProductKernel kernel);
// LibTorch's first.
std::vector<ProductKernel> product_kernels(ir::DType dtype);

// out = beta · out + a · b, beta 0 or 1; what `out` holds is not read for 0.
//   a, b, out: [m, k], [k, n], [m, n], of a dtype that the kernel has, out row-major
void multiply(ProductKernel kernel, const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, float beta);

}  // namespace sfsdp::exec
