// SPDX-License-Identifier: BSD-3-Clause
// What is known of a step before PyTorch's memory is run over it: which values are gradients, sums, shards to be sent.
#pragma once

#include <unordered_set>

#include "sfsdp/cost/product_sums.h"
#include "sfsdp/ir/graph.h"
#include "sfsdp/sim/pytorch/lifetimes.h"

namespace sfsdp::sim {

using Values = std::unordered_set<const ir::Value*>;

struct StepFacts {
  // Both must outlive it, and the graph must not change.
  StepFacts(const ir::Graph& graph, const PyTorchOptions& options);

  const ir::Graph& graph;
  const PyTorchOptions& options;
  const Lifetimes lifetimes;
  const cost::ProductSums product_sums;  // none where options have none
  size_t begin = 0, end = 0;             // of what each micro-batch runs, in lifetimes.order()
  bool keeps_whole_gradients = false;    // in buffers that stay: as options say, or DDP
  Values read_by_model, sent, unpacked;  // not by the update alone; by gathers; copied out by the graph itself
  Values gradients, sums;                // what the optimizer reads; what is added up over micro-batches
  Values parameter_gradients;            // of narrow parameters, which hold them beside the wider sums
};

}  // namespace sfsdp::sim
