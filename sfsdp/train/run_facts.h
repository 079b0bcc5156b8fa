// SPDX-License-Identifier: BSD-3-Clause
// What is known of a run before its first step: the lines that its console begins with, a line of run.jsonl.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/plan/step_plan.h"
#include "sfsdp/train/config/config.h"
#include "sfsdp/train/plan_summary.h"

namespace sfsdp::train {

// Bytes of a rank at the fullest moment of a step, as planned: from lifetimes in the graph, not measured.
struct PlannedMemory {
  int64_t parameters = 0;   // as stored, and whole copies that outlive a step
  int64_t optimizer = 0;    // moments, counters, buffers of the module
  int64_t gradients = 0;    // of parameters
  int64_t activations = 0;  // of forward, kept for backward
  int64_t gathered = 0;     // parameters as they are read
  int64_t other = 0;        // what one part of the step makes and reads itself, and what a plan needs beside
  int64_t total() const { return parameters + optimizer + gradients + activations + gathered + other; }
};
// As the reference executor needs it: collectives are over where they start, each value is a tensor of its own.
//   graph: of the step
PlannedMemory planned_memory(const ir::Graph& graph);
// As the planned executor needs it.
PlannedMemory planned_memory(const plan::StepPlan& plan);

struct RunFacts {
  JobConfig config;
  std::vector<std::string> notes;  // of the config, config.json and the weights: a line each
  int64_t parameters = 0;
  std::string mesh, backend;  // "[dp_shard=2]", "tcp"
  int64_t data_ranks = 1;     // that read different samples
  int64_t global_batch = 0;   // sequences per step
  int64_t micro_batches = 1;
  int64_t flops_per_token = 0;
  double peak_flops = 0;     // of this rank per second, measured
  int64_t device_bytes = 0;  // memory of the machine
  PlanSummary plan;
  PlannedMemory memory;
  std::string datasets;       // a line for each source of samples
  int64_t last_step = 0;      // done before this start: 0, or the step that was resumed from
  int64_t start_seconds = 0;  // since 1970, the same on all ranks
  std::string libtorch;       // "2.13.0"
  int64_t world_size = 1;

  int64_t tokens_per_step() const { return global_batch * config.training.seq_len; }
};

// The lines up to "Training starts at step N", each with its newline.
std::string start_text(const RunFacts& facts);
// One object on one line, docs/metrics.md lists the fields; with this machine's name and this process's number.
std::string json_line(const RunFacts& facts);

}  // namespace sfsdp::train
