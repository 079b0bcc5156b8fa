// SPDX-License-Identifier: BSD-3-Clause
// What a strategy cuts over model axes, one after the other.
#pragma once

#include <vector>

#include "sfsdp/parallel/data_parallel.h"
#include "sfsdp/parallel/partition.h"
#include "sfsdp/passes/canonical/canonicalise.h"

namespace sfsdp::parallel {

// Names what several ops compute together (canonicalise), each once.
void name_ops(ir::Graph& graph, const passes::CanonicaliseOptions& canonical = {});

// name_ops, then partitions over each model axis.
//   returns: by model axis
std::vector<PartitionReport> apply_model_parallel(ir::Graph& graph, const Strategy& strategy,
                                                  const passes::CanonicaliseOptions& canonical = {});

// The second half: of a graph that name_ops has named.
std::vector<PartitionReport> cut_named(ir::Graph& graph, const Strategy& strategy);

}  // namespace sfsdp::parallel
