// SPDX-License-Identifier: BSD-3-Clause
// DeepSpeed's stage 3 for the simulator: parameters are gathered for the module that needs them and ahead of it by a bucket of elements,
// gradients are reduced by larger buckets. docs/simulator.md says what that leaves out.
#pragma once

#include <cstdint>
#include <string>

#include "sfsdp/ir/graph.h"
#include "sfsdp/tools/commands.h"
#include "sfsdp/train/config/config.h"

namespace sfsdp::tools {

// Elements. The defaults are those of DeepSpeed's documentation (deepspeed/runtime/zero/config.py).
struct DeepSpeed {
  int64_t prefetch_bucket = 50'000'000;         // stage3_prefetch_bucket_size: gathered ahead of its use
  int64_t reduce_bucket = 500'000'000;          // reduce_bucket_size
  int64_t max_live_parameters = 1'000'000'000;  // stage3_max_live_parameters: gathered at once, in use and ahead
};

// --simulate.prefetch_bucket, .reduce_bucket and .max_live_parameters.
//   throws: UserError for a stage that is not 3, for units by name or by cost, and for numbers that are none
DeepSpeed deepspeed_of(const Request& request, const train::JobConfig& config);

// parallelism.fsdp_units that stand for its gathers: parameters in their order, until so many elements are reached, for one bucket in use
// and one ahead.
//   graph: a compiled step's, whose params say what they are made of
std::string deepspeed_units(const ir::Graph& graph, const DeepSpeed& options);

}  // namespace sfsdp::tools
