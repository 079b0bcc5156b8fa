// SPDX-License-Identifier: BSD-3-Clause
// How values lie that are made of some of a rank's own rows, chunk by chunk, for layouts.h. Written apart from passes/memory/chunk_loss.h.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/plan/verify/row_layouts.h"

namespace sfsdp::plan {

//   narrow     in the dimension that is cut: a range of the rows that each rank has
//   aten.cat   in that dimension, of ranges that follow each other: the longer range, and of all of them what is cut; of summands: a summand
// nullopt: the op neither takes rows nor puts them together.
//   operands: as row_layouts.h has them
std::optional<RowLayouts> own_rows_layouts(const ir::Op& op, const std::vector<Layout>& operands);

// What other ops read of them has to be of the same range.
struct OwnRows {
  std::optional<Layout> range;  // unset: no operand is of a range
  std::string wrong;
};
OwnRows own_rows_of(const ir::Op& op, const std::vector<Layout>& operands);

// A range as if its rows were all: what an op's row says of such, it says of the range. And back, of what is then cut.
Layout without_range(const Layout& layout);
Layout with_range(const Layout& layout, const Layout& range);

}  // namespace sfsdp::plan
