// SPDX-License-Identifier: BSD-3-Clause
// OpenBLAS, where the machine has it (Debian: libopenblas0-pthread): found when it is first asked for, no part of the build. Its
// symbols are seen by nobody else, so LibTorch keeps its own BLAS.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace sfsdp::exec {

class OpenBlas {
 public:
  // The library of the process; null: there is none, or the process had it loaded before, and may have set it up otherwise.
  static const OpenBlas* find();
  // Loads `file` with one thread of its own and its own choice of a core type, whatever OPENBLAS_NUM_THREADS and OPENBLAS_CORETYPE
  // say. Where the processor has AVX-512 and that choice has not, as older versions take new processors of AMD for a Haswell, with
  // SkylakeX. Changes the environment while it loads, so no other thread may read that: a program asks for it, as
  // `sfsdp train` does, before it starts any. Null: no such library, or without
  // cblas_sgemm and cblas_dgemm.
  static const OpenBlas* load(const char* file);

  // "0.3.21 Cooperlake": what last bits depend on.
  const std::string& version() const { return version_; }

  // out = beta · out + a · b, beta 0: what `out` holds is not read. LibTorch's threads share out the rows or the columns of `out`, each
  // element of which is computed by one.
  //   a, b, out: [m, k], [k, n], [m, n], of one dtype, float32 or float64, out row-major; a copy is made of an operand that is
  //              neither row-major nor transposed
  void multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, double beta) const;

 private:
  using Sgemm = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a, int lda,
                         const float* b, int ldb, float beta, float* c, int ldc);
  using Dgemm = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, double alpha, const double* a,
                         int lda, const double* b, int ldb, double beta, double* c, int ldc);
  Sgemm sgemm_ = nullptr;
  Dgemm dgemm_ = nullptr;
  std::string version_;
};

}  // namespace sfsdp::exec
