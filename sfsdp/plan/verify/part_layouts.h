// SPDX-License-Identifier: BSD-3-Clause
// How values lie of which products are computed part by part, beside the permutes that bring the parts or take them home, for layouts.h.
// Written apart from passes/overlap/pipeline_products.h.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/plan/verify/row_layouts.h"

namespace sfsdp::plan {

//   own_part with shift=  over the axis: of what is cut in another dimension or whole, the part of the rank that stands so many before
//   linear, linear_dx     of such a part, of one that permute has brought, or of the rank's own where the weight is cut too: what the product
//                         of all rows is, of these rows alone; of such summands aten.add takes two of the same part
//   permute               over the axis, of a summand of a part: the term of that rank for the part's owner
//   join_parts            over the axis: of the part of each rank, the i-th that of the rank i before, the whole or what is cut elsewhere
//   add_parts             over the axis: of the terms of the rank's own part, the first from the rank 1 before, the last its own: the part
// What is joined or added is made of the same values by the same ops on all sides, but for whose part it is.
// nullopt: the op reads and makes none.
//   operands: as row_layouts.h has them, as has `named`;  here: axis= names the axis, which has `ranks`
std::optional<RowLayouts> part_layouts(const ir::Op& op, const std::vector<Layout>& operands,
                                       const std::vector<Layout>& named, bool here, int64_t ranks);

}  // namespace sfsdp::plan
