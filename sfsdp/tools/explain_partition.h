// SPDX-License-Identifier: BSD-3-Clause
// What a model axis has cut, and what passes between its ranks for that.
#pragma once

#include <iosfwd>

#include "sfsdp/compile/complete_step.h"
#include "sfsdp/ir/graph.h"
#include "sfsdp/parallel/data_parallel.h"

namespace sfsdp::tools {

// By parameter: which dimension is cut, and by which rule; by place: which collective or copy stands there, of how many bytes of the
// whole, and which op wants it so. Layers that are alike are one line. Nothing without a model axis.
// Over cp, where the options name a machine: what each attention exchanges, and the times of the alternatives.
//   graph: as captured; it is cut
void explain_partition(ir::Graph& graph, const Strategy& strategy, const step::StepOptions& options, std::ostream& out);

}  // namespace sfsdp::tools
