// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "sfsdp/ir/graph.h"

namespace sfsdp::parallel {

// A product that is added up over the axis, by the cut of its weight, is taken apart from its bias, which comes after the sum, as each
// rank would add it once.
//   cuts: which dimension of which parameters the axis cuts
void take_biases_apart(ir::Graph& graph, const std::map<std::string, int64_t>& cuts);

}  // namespace sfsdp::parallel
