// SPDX-License-Identifier: BSD-3-Clause
// The layouts of ops over a rank's part of a vocabulary, for layouts.h: their maps do not say which rank has which ids.
#pragma once

#include <optional>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/plan/verify/row_layouts.h"

namespace sfsdp::plan {

// What operands of an op with axis= this axis have to be, and its result is:
//   embedding               of a table cut in its rows and whole ids: a summand
//   embedding_backward      of what is whole: the gradient, cut in its rows
//   cross_entropy_parts     of logits cut in their classes and whole targets: the ranks' parts, cut in dimension 0
//   cross_entropy_backward  of logits cut in their classes, all else whole: cut as they are
// nullopt: the op is none of these. `wrong` where an operand lies otherwise.
std::optional<RowLayouts> vocabulary_layouts(const ir::Op& op, const std::vector<Layout>& operands);

}  // namespace sfsdp::plan
