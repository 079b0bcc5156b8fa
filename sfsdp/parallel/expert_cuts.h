// SPDX-License-Identifier: BSD-3-Clause
// How products of groups are cut over an axis of which each rank has some of the groups, by name: their rows, sorted by group, are then
// a range on each rank, which only memory says (Placement::Kind::Rows). Their map says that each row picks its matrix by an index, so
// that op_cuts.h would gather.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/placement.h"
#include "sfsdp/parallel/op_cuts.h"

namespace sfsdp::parallel {

// aten._grouped_mm, whose operand 2, where groups end, each rank then has of its own groups (own_ends):
//   of rows and matrices that are cut in dimension 0   the rank's rows by its matrices: the rank's rows
//   of two matrices whose rows are a rank's            a matrix for each of the rank's groups
// nullopt: the op is none of these, or its operands are not cut so.
//   offsets: which of the graph's offsets operand 2 is
std::optional<OpCut> expert_cut_of(const ir::Op& op, const std::vector<ir::Placement>& operands, int64_t offsets);

}  // namespace sfsdp::parallel
