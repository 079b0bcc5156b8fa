// SPDX-License-Identifier: BSD-3-Clause
// Any processor: 16 registers of 4 floats.
#include <cstdint>

#include "sfsdp/kernels/family.h"

#define SFSDP_LANES 4
#define SFSDP_TILE_ROWS 6
#define SFSDP_TILE_VECTORS 2
#include "sfsdp/kernels/vector.h"

#include "sfsdp/kernels/small_product.h"

#include "sfsdp/kernels/attention_kernel.h"
#include "sfsdp/kernels/cross_entropy_kernel.h"

namespace sfsdp::kernels {

Family baseline_family() {
  return {"baseline", &attention_forward, &attention_backward, &cross_entropy_forward, &cross_entropy_grad};
}

}  // namespace sfsdp::kernels
