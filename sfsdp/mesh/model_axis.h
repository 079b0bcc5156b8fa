// SPDX-License-Identifier: BSD-3-Clause
// Which axes of a mesh cut the model, and not the batch.
#pragma once

#include <string_view>

namespace sfsdp {

// Ranks along a model axis have the same samples, and parts of each other's values. Along all others, data axes, each rank has
// its own batch.
constexpr bool is_model_axis(std::string_view axis) { return axis == "tp"; }

}  // namespace sfsdp
