// SPDX-License-Identifier: BSD-3-Clause
// How values lie that ring attention sends around an axis and puts together again, for layouts.h. Written apart from
// parallel/ring_attention.h.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/plan/verify/row_layouts.h"

namespace sfsdp::plan {

//   permute       over the axis: of a rank's part that of the rank shift= before; of terms the same. What comes home is the rank's own
//   sdpa with shift= over the axis: of queries cut in dimension 2 and keys and values of the rank that shift= names: attention to these
//                 alone, which sdpa_merge takes with attention to the ones next to them; to all ranks' it is cut in dimension 2
//   sdpa_backward with shift=: of what is of all keys; gradients are terms, one for each rank's queries or keys, which aten.add takes with
//                 those next to them; all of them are the gradient
//   views, casts, waits and copies leave what they are of what it is
// No other op reads such values. nullopt: the op reads and makes none.
//   operands: as row_layouts.h has them, as has `named`;  here: axis= names the axis, which has `ranks`
std::optional<RowLayouts> ring_layouts(const ir::Op& op, const std::vector<Layout>& operands,
                                       const std::vector<Layout>& named, bool here, int64_t ranks);

}  // namespace sfsdp::plan
