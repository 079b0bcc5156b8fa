// SPDX-License-Identifier: BSD-3-Clause
// What:   moves each gather's start ahead of its neighbours' waits, so that it runs under the compute of earlier units.
// Why:    a gather that starts where it is needed is all exposed.
// Needs:  gathers in two halves (split_collectives).
// Leaves: the i-th gather of a section starts just before, or just after, the wait of gather i - depth; at most `depth`
//         gathered units are in flight besides the one in use. The first of backward starts where backward begins: it
//         computes with the unit that forward has kept for it. Compute, and the order of gathers, stay.
// Source: SimpleFSDP, arXiv:2411.00284, section 4 (reordering): forward before the wait, backward after it, where the
//         copy out of the last bucket and the reduction share the time. TorchTitan's and AutoParallel's variants differ;
//         all can be had.
#pragma once

#include <cstdint>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/overlap/schedule.h"
#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

struct PrefetchGathersOptions {
  int64_t depth = 1;            // units ahead; 0 leaves all as it is
  Side forward = Side::Before;  // of the wait `depth` gathers earlier
  Side backward = Side::After;
  int64_t max_bytes = 0;  // of gathers in flight at once, besides one; 0: no bound

  static const std::vector<Field<PrefetchGathersOptions>>& fields();
};

bool prefetch_gathers(ir::Graph& graph, const PrefetchGathersOptions& options, PassContext& ctx);

// Throws InternalError naming a gather that does not stand as "Leaves" says. The pass calls it on its own result.
void expect_prefetched(const ir::Graph& graph, const PrefetchGathersOptions& options);

}  // namespace sfsdp::passes
