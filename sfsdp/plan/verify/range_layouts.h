// SPDX-License-Identifier: BSD-3-Clause
// Ranges of a dimension of which a rank has its part of each block: taken out of it, or put side by side, for layouts.h.
#pragma once

#include <optional>
#include <vector>

#include "sfsdp/plan/verify/row_layouts.h"

namespace sfsdp::plan {

// nullopt: the op takes or joins no ranges of a dimension in which an operand is cut.
std::optional<RowLayouts> range_layouts(const ir::Op& op, const std::vector<Layout>& operands);

}  // namespace sfsdp::plan
