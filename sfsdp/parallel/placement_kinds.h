// SPDX-License-Identifier: BSD-3-Clause
// Short names of placements, for all that chooses where values lie on an axis.
#pragma once

#include "sfsdp/ir/placement.h"

namespace sfsdp::parallel {

inline constexpr ir::Placement kWhole = ir::Placement::replicate();
inline constexpr ir::Placement kSum = ir::Placement::partial(ir::ReduceOp::Sum);

inline bool is_cut(const ir::Placement& placement) { return placement.kind == ir::Placement::Kind::Shard; }
inline bool is_rows(const ir::Placement& placement) { return placement.kind == ir::Placement::Kind::Rows; }

}  // namespace sfsdp::parallel
