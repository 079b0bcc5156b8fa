// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/planned/products.h"

#include <ATen/Functions.h>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/exec/planned/onednn_matmul.h"
#include "sfsdp/exec/planned/openblas.h"

namespace sfsdp::exec {

std::optional<ProductKernel> product_kernel(std::string_view name) {
  if (name.empty() || name == kAtenMm) return ProductKernel::Aten;
  if (name == kOneDnnMatmul) return ProductKernel::OneDnn;
  if (name == kOpenBlasGemm) return ProductKernel::OpenBlas;
  return std::nullopt;
}

const char* to_string(ProductKernel kernel) {
  switch (kernel) {
    case ProductKernel::Aten: return kAtenMm;
    case ProductKernel::OneDnn: return kOneDnnMatmul;
    case ProductKernel::OpenBlas: return kOpenBlasGemm;
  }
  return "";
}

std::string described(ProductKernel kernel) {
  if (kernel != ProductKernel::OpenBlas || !OpenBlas::find()) return to_string(kernel);
  return concat(kOpenBlasGemm, " of ", OpenBlas::find()->version());
}

bool has_product(ProductKernel kernel) {
  switch (kernel) {
    case ProductKernel::Aten: return true;
    case ProductKernel::OneDnn: return has_onednn_matmul();
    case ProductKernel::OpenBlas: return OpenBlas::find() != nullptr;
  }
  return false;
}

std::vector<ProductKernel> product_kernels(ir::DType dtype) {
  std::vector<ProductKernel> kernels = {ProductKernel::Aten};
  if (dtype == ir::DType::f32 && has_onednn_matmul()) kernels.push_back(ProductKernel::OneDnn);
  if ((dtype == ir::DType::f32 || dtype == ir::DType::f64) && has_product(ProductKernel::OpenBlas))
    kernels.push_back(ProductKernel::OpenBlas);
  return kernels;
}

void multiply(ProductKernel kernel, const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, float beta) {
  SFSDP_CHECK(has_product(kernel), "this process has no ", to_string(kernel));
  if (kernel == ProductKernel::OneDnn) return onednn_matmul(a, b, out, beta);
  if (kernel == ProductKernel::OpenBlas) return OpenBlas::find()->multiply(a, b, out, beta);
  at::Tensor place = out;
  beta == 0 ? at::mm_out(place, a, b) : at::addmm_out(place, out, a, b, beta);
}

}  // namespace sfsdp::exec
