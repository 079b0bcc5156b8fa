// SPDX-License-Identifier: BSD-3-Clause
// Collectives on the arrays of all simulated ranks at once: the definition, not an algorithm.
#pragma once

#include <span>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/mesh/device_mesh.h"
#include "sfsdp/testing/interp/array.h"

namespace sfsdp::ir::interp {

// One array per operand and rank in, one per rank out. Sums are added in group order, in double.
//   operands: by operand, then by rank
std::vector<Array> run_collective(const DeviceMesh& mesh, const Op& op,
                                  std::span<const std::vector<const Array*>> operands);

}  // namespace sfsdp::ir::interp
