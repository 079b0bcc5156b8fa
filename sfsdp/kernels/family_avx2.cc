// SPDX-License-Identifier: BSD-3-Clause
// Processors with AVX2: 16 registers of 8 floats.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>

#include "sfsdp/kernels/family.h"

// After all other headers, whose functions other files share.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define SFSDP_LANES 8
#define SFSDP_SQRT(v) reinterpret_cast<V>(_mm256_sqrt_ps(reinterpret_cast<__m256>(v)))
#define SFSDP_TILE_ROWS 6
#define SFSDP_TILE_VECTORS 2
#include "sfsdp/kernels/all_kernels.h"

namespace sfsdp::kernels {

Family avx2_family() { return family_named("avx2"); }

}  // namespace sfsdp::kernels
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
