// SPDX-License-Identifier: BSD-3-Clause
// What a model axis has cut, and what passes between its ranks for that.
#pragma once

#include <iosfwd>

#include "sfsdp/ir/graph.h"
#include "sfsdp/parallel/data_parallel.h"
#include "sfsdp/tune/tune.h"

namespace sfsdp::tools {

// By parameter: which dimension is cut, and by which rule; by place: which collective or copy stands there, of how many bytes of the
// whole, and which op wants it so. Layers that are alike are one line. Nothing without a model axis.
//   graph: as captured; it is cut
void explain_partition(ir::Graph& graph, const Strategy& strategy, const tune::TuneOptions& tune, std::ostream& out);

}  // namespace sfsdp::tools
