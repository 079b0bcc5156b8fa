// SPDX-License-Identifier: BSD-3-Clause
// Any processor: 16 registers of 4 floats.
#include <cstdint>

#include "sfsdp/kernels/family.h"

#define SFSDP_LANES 4
#define SFSDP_SQRT(v) root_of_each(v)
#define SFSDP_TILE_ROWS 6
#define SFSDP_TILE_VECTORS 2
#include "sfsdp/kernels/all_kernels.h"

namespace sfsdp::kernels {

Family baseline_family() { return family_named("baseline"); }

}  // namespace sfsdp::kernels
