// SPDX-License-Identifier: BSD-3-Clause
// The interpreter's kernels of canonical ops (ir/canonical/).
#pragma once

#include <string_view>

#include "sfsdp/testing/interp/kernels.h"

namespace sfsdp::ir::interp {

Kernel find_canonical_kernel(std::string_view opcode);  // nullptr: none

}  // namespace sfsdp::ir::interp
