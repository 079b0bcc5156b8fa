// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/planned/onednn_matmul.h"

#include <dlfcn.h>

#include "sfsdp/base/check.h"

namespace sfsdp::exec {
namespace {

// at::native::mkldnn_matmul(mat1, mat2, result, beta, alpha) of LibTorch: exported, in no header that it installs.
using Matmul = void (*)(const at::Tensor&, const at::Tensor&, const at::Tensor&, float, float);

Matmul find_matmul() {
  static const auto found =
      reinterpret_cast<Matmul>(dlsym(RTLD_DEFAULT, "_ZN2at6native13mkldnn_matmulERKNS_6TensorES3_S3_ff"));
  return found;
}

}  // namespace

bool has_onednn_matmul() { return find_matmul() != nullptr; }

void onednn_matmul(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, float beta) {
  SFSDP_CHECK(has_onednn_matmul(), "this LibTorch has no mkldnn_matmul");
  find_matmul()(a, b, out, beta, 1.0F);
}

bool prefers_onednn_matmul(at::ScalarType dtype) {
#if defined(__x86_64__)
  return dtype == at::kFloat && has_onednn_matmul() && !__builtin_cpu_is("intel");
#else
  return false;
#endif
}

}  // namespace sfsdp::exec
