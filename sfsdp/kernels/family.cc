// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/kernels/family.h"

namespace sfsdp::kernels {

std::vector<Family> families() {
  std::vector<Family> found = {baseline_family()};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found.push_back(avx2_family());
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq")) {
    found.push_back(avx512_family());
    if (__builtin_cpu_supports("avx512bf16")) found.push_back(avx512bf16_family());
  }
#endif
  return found;
}

const Family& family() {
  static const Family kBest = families().back();
  return kBest;
}

}  // namespace sfsdp::kernels
