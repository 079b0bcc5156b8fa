// SPDX-License-Identifier: BSD-3-Clause
// One unit of attention: the heads of a group in one sample. A file for each family of processors computes it.
#pragma once

#include <cstdint>

#include "sfsdp/kernels/attention.h"

namespace sfsdp::kernels {

// Queries and keys of a tile.
inline constexpr int64_t kTile = 64;

struct AttentionUnit {
  const Attention* attention = nullptr;
  int64_t sample = 0, group = 0;
  const int32_t* documents = nullptr;  // by position: equal numbers are one document; null: all are
  float* scratch = nullptr;            // scratch_floats() of them, 64-byte aligned
};

int64_t scratch_floats(const AttentionShape& shape, bool backward);

using AttendUnit = void (*)(const AttentionUnit& unit);
struct AttentionKernels {
  AttendUnit forward, backward;
};
AttentionKernels attention_baseline();
#if defined(__x86_64__)
AttentionKernels attention_avx2();
AttentionKernels attention_avx512();
#endif

}  // namespace sfsdp::kernels
