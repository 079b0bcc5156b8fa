// SPDX-License-Identifier: BSD-3-Clause
// Whether each gradient that is summed beside others, in one buffer, is the parameter's own again after it: of the right bucket, once,
// as a whole. How it lies on the axes and over which it is summed are verify_layouts' and check_axis_states'; to those all gradients of one
// size are alike. Written apart from the pass pack_all_reduces.
#pragma once

#include <string>

#include "sfsdp/ir/graph.h"

namespace sfsdp::plan {

// From each `gradient` op of a bucket back to the pack of its members' gradients, through casts, sums and collectives. Where it goes through
// a view of a sum of several:
//   the view     shows exactly one operand of the buffer that is summed
//   the buffer   has no operand twice, and a gradient reads each of them, one alone
//   the pack     that the operand comes from is that of the bucket: its offsets, and its unit as the module path
// Returns "" or what is wrong, with the op.
std::string check_packed_sums(const ir::Graph& graph);

}  // namespace sfsdp::plan
