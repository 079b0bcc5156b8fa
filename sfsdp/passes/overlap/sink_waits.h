// SPDX-License-Identifier: BSD-3-Clause
// What:   moves the waits of gradient reductions down to the next reduction: it runs under the compute between them.
// Why:    a reduction that is waited for where it starts is all exposed.
// Needs:  reductions in two halves (split_collectives).
// Leaves: in backward, the wait of reduction i, with what only adds its result up, stands just before the pack that fills
//         the buffer of reduction i + depth, so that the one can take the other's memory, or just after its start; the
//         last `depth` ones at the end of backward.
// Source: SimpleFSDP, arXiv:2411.00284, section 4 (reordering); GraphTrainer waits after the next start.
#pragma once

#include <cstdint>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/overlap/schedule.h"
#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

struct SinkWaitsOptions {
  int64_t depth = 1;         // reductions in flight at once; 0 leaves all as it is
  Side next = Side::Before;  // of the start that is `depth` reductions later

  static const std::vector<Field<SinkWaitsOptions>>& fields();
};

bool sink_waits(ir::Graph& graph, const SinkWaitsOptions& options, PassContext& ctx);

// Throws InternalError naming a reduction whose wait does not stand as "Leaves" says. The pass calls it on its own result.
void expect_sunk(const ir::Graph& graph, const SinkWaitsOptions& options);

}  // namespace sfsdp::passes
