// SPDX-License-Identifier: BSD-3-Clause
// What a step's graph will do, in a few lines: ops, collectives and bytes, memory of the state.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "sfsdp/ir/graph.h"

namespace sfsdp::train {

struct CollectiveSum {
  int64_t count = 0;
  int64_t bytes = 0;  // of the larger side: what a gather makes, what a reduction reads
};

struct PlanSummary {
  int64_t ops = 0;
  std::map<std::string, CollectiveSum>
      collectives;              // by opcode; per step, those in the repeated region × micro-batches
  int64_t parameter_bytes = 0;  // stored on this rank
  int64_t state_bytes = 0;      // moments, buffers and counters on this rank
};

PlanSummary summarise(const ir::Graph& graph);

// "17 all_gather (24.6 MiB), 17 reduce_scatter (…)"; "no collectives".
std::string collectives_text(const PlanSummary& summary);
// "1.5 GiB", "640 B".
std::string bytes_text(int64_t bytes);

}  // namespace sfsdp::train
