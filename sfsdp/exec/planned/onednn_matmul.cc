// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/planned/onednn_matmul.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include "sfsdp/base/check.h"

namespace sfsdp::exec {
namespace {

// at::native::mkldnn_matmul(mat1, mat2, result, beta, alpha) of LibTorch: exported, in no header that it installs.
using Matmul = void (*)(const at::Tensor&, const at::Tensor&, const at::Tensor&, float, float);

// LibTorch asks for what bfloat16 needs, AVX-512 above all, of float32 too. What it asks for differs among releases, so it is tried.
bool takes_float(Matmul matmul) {
  const at::Tensor one = at::ones({2, 2}), out = at::empty({2, 2});
  try {
    matmul(one, one, out, 0.0F, 1.0F);
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

Matmul find_matmul() {
  static const Matmul found = [] {
    const auto symbol =
        reinterpret_cast<Matmul>(dlsym(RTLD_DEFAULT, "_ZN2at6native13mkldnn_matmulERKNS_6TensorES3_S3_ff"));
    return symbol && takes_float(symbol) ? symbol : nullptr;
  }();
  return found;
}

}  // namespace

bool has_onednn_matmul() { return find_matmul() != nullptr; }

void onednn_matmul(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, float beta) {
  SFSDP_CHECK(has_onednn_matmul(), "LibTorch offers no mkldnn_matmul on this processor");
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
