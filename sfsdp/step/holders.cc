// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/step/holders.h"

#include <algorithm>

namespace sfsdp::step {

AxisList model_holder_axes(const Strategy& strategy, const StoredTensor& tensor) {
  AxisList axes = tensor.sharded ? strategy.tensor_axes() : strategy.model_axes();
  for (const plan::Cut& cut : tensor.cuts)
    std::erase_if(axes, [&](const std::string& axis) { return std::ranges::find(cut.axes, axis) != cut.axes.end(); });
  return axes;
}

AxisList holder_axes(const Strategy& strategy, const StoredTensor& tensor) {
  AxisList axes = tensor.sharded ? strategy.replicate_axes() : strategy.data_axes();
  for (const std::string& axis : model_holder_axes(strategy, tensor)) axes.push_back(axis);
  return axes;
}

}  // namespace sfsdp::step
