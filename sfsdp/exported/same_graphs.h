// SPDX-License-Identifier: BSD-3-Clause
// Captures of one forward at several sizes, read as one graph whose numbers depend on the sizes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/exported/sizes.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::exported {

// Throws UserError unless all graphs have the same ops in the same order, with the same operands and the same attributes
// but for whole numbers. It names the first op that differs, its module and the sizes.
//   graphs: captured at the points of `sizes`, in their order
void check_same_ops(std::span<const ir::Graph> graphs, const Sizes& sizes);

// "batch = 5, length = 7"
std::string point_text(const Sizes& sizes, size_t point);

}  // namespace sfsdp::exported
