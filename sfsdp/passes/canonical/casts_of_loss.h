// SPDX-License-Identifier: BSD-3-Clause
// Models that widen logits before they flatten them to rows, as those of transformers do.
#pragma once

#include "sfsdp/ir/graph.h"

namespace sfsdp::passes {

// Rows are taken of the narrow logits and widened then, and a gradient is narrowed before it takes their shape: the cast stands
// beside the loss, which is found with it. The same numbers: a cast is element by element, and the rows are a view.
//   returns: whether anything has changed
bool cast_beside_loss(ir::Graph& graph);

}  // namespace sfsdp::passes
