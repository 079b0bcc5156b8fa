// SPDX-License-Identifier: BSD-3-Clause
// Which degree of a model axis a refusal names as its cure.
#pragma once

#include <concepts>
#include <cstdint>
#include <string_view>
#include <vector>

#include "sfsdp/mesh/device_mesh.h"

namespace sfsdp::parallel {

// The largest number of ranks, `ranks` at most, that the axis could have instead. dp_shard takes the ranks that are left, so the number divides
// those of both: of 6 ranks none can have 4.
//   mesh: the axes that are known, dp_shard or not
//   fits: whether what the axis cuts can be cut for so many ranks; it need not hold of 1
int64_t nearest_degree(const std::vector<MeshAxis>& mesh, int64_t ranks, const std::predicate<int64_t> auto& fits) {
  int64_t both = ranks;
  for (const MeshAxis& axis : mesh)
    if (axis.name == "dp_shard") both *= axis.size;
  int64_t degree = ranks;
  while (degree > 1 && (both % degree != 0 || !fits(degree))) --degree;
  return degree;
}

}  // namespace sfsdp::parallel
