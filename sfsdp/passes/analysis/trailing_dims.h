// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>

#include "sfsdp/ir/graph.h"

namespace sfsdp::passes {

// How many dimensions of its first operand a reduction is over (dim=), if these are the last ones, in order; 0 otherwise.
size_t trailing_dims(const ir::Op& reduction);

}  // namespace sfsdp::passes
