// SPDX-License-Identifier: BSD-3-Clause
// How values lie that ops over a part of the sequence read and make, for layouts.h. Written apart from parallel/sequence_cuts.h.
#pragma once

#include <optional>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/plan/verify/row_layouts.h"

namespace sfsdp::plan {

//   sdpa, sdpa_backward with axis= this one: queries, and all that is as long, are cut in dimension 2, keys and values whole; the gradients
//     of these are summands
//   cross_entropy, cross_entropy_of_parts with reduction= the sum, of rows that are cut: the sum and the count are summands
//   embedding_backward without axis= this one, of rows that are cut as their ids: a summand
// nullopt: none of these.
//   here: axis= names the axis
std::optional<RowLayouts> sequence_layouts(const ir::Op& op, const std::vector<Layout>& operands, bool here);

}  // namespace sfsdp::plan
