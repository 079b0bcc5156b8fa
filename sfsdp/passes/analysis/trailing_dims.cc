// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/analysis/trailing_dims.h"

#include <vector>

namespace sfsdp::passes {

size_t trailing_dims(const ir::Op& reduction) {
  const size_t rank = reduction.operands[0]->type().dims.size();
  std::vector<int64_t> dims;
  if (const auto* all = reduction.find_attr<std::vector<int64_t>>("dim")) dims = *all;
  if (const auto* one = reduction.find_attr<int64_t>("dim")) dims = {*one};
  for (size_t i = 0; i < dims.size(); ++i) {
    const int64_t dim = dims[i] < 0 ? dims[i] + static_cast<int64_t>(rank) : dims[i];
    if (dim != static_cast<int64_t>(rank - dims.size() + i)) return 0;
  }
  return dims.size();
}

}  // namespace sfsdp::passes
