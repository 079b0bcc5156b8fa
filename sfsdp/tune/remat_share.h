// SPDX-License-Identifier: BSD-3-Clause
// How much of forward to compute again, decided by cost together with what stays gathered: activations and gathered
// parameters share the device's memory, and either can be made again, by kernels or by a gather.
//
// Each share of the activations that may be kept (RematOptions::memory_budget) is tried: the whole pipeline runs on a copy
// of the graph, units stay gathered where that pays and memory allows, and the plan is simulated. The fastest
// that fits is taken. A smaller share frees memory for gathered parameters, so the largest share that fits need not be the
// fastest.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/tune/tune.h"

namespace sfsdp::tune {

struct RematTrial {
  passes::RematOptions options;
  double seconds = 0;      // of the step, simulated
  int64_t peak_bytes = 0;  // with addresses, state included
  bool fits = false;
};

struct RematChoice {
  passes::RematOptions options;  // mode None, Full or MemoryBudget
  std::vector<RematTrial> trials;
};

// The graph, its options and the storage layout as for run_pipeline; options.remat is not read. Where tune.wrap is
// Search, trials choose units by the greedy rule, and the best two are then compared with search. The one that needs least
// memory where none fits. Deterministic: the same on every rank.
//   throws: UserError without tune.machine, and as run_pipeline does
RematChoice choose_remat(const ir::Graph& graph, const passes::PipelineOptions& options, const TuneOptions& tune,
                         const std::optional<plan::BucketLayouts>& layout);

// A line per trial, in the order they were made; "" without trials.
std::string table(std::span<const RematTrial> trials);

}  // namespace sfsdp::tune
