// SPDX-License-Identifier: BSD-3-Clause
// Any processor: 16 registers of 4 floats.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "sfsdp/kernels/attention_unit.h"

#define SFSDP_LANES 4
#define SFSDP_TILE_ROWS 6
#define SFSDP_TILE_VECTORS 2
#include "sfsdp/kernels/attention_kernel.h"

namespace sfsdp::kernels {

AttentionKernels attention_baseline() { return {&forward, &backward}; }

}  // namespace sfsdp::kernels
