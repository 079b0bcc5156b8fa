// SPDX-License-Identifier: BSD-3-Clause
// Processors with AVX-512 and products of pairs of bfloat16 (AVX512_BF16): twice the rate of float32.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>

#include "sfsdp/kernels/family.h"

// After all other headers, whose functions other files share.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512bf16,avx512f,avx512vl,avx512bw,avx512dq,avx2,fma"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512bf16,avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")
#endif
#define SFSDP_LANES 16
// The form with a mask: g++ 12 warns of the other, in whose header a value has no beginning.
#define SFSDP_SQRT(v) reinterpret_cast<V>(_mm512_maskz_sqrt_ps(0xffff, reinterpret_cast<__m512>(v)))
// Each lane of `sum` and both products of the pairs in that lane of a and b.
#define SFSDP_DOT(sum, a, b) \
  reinterpret_cast<V>(       \
      _mm512_dpbf16_ps(reinterpret_cast<__m512>(sum), reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b)))
// To nearest even.
#define SFSDP_TO_HALF(v) reinterpret_cast<H>(_mm512_cvtneps_pbh(reinterpret_cast<__m512>(v)))
#define SFSDP_TILE_ROWS 6
#define SFSDP_TILE_VECTORS 4
#include "sfsdp/kernels/all_kernels.h"

namespace sfsdp::kernels {

Family avx512bf16_family() { return family_named("avx512bf16"); }

}  // namespace sfsdp::kernels
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
