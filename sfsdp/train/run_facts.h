// SPDX-License-Identifier: BSD-3-Clause
// What is known of a run before its first step: the lines that its console begins with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sfsdp/train/config/config.h"
#include "sfsdp/train/plan_summary.h"

namespace sfsdp::train {

struct RunFacts {
  JobConfig config;
  std::vector<std::string> notes;  // of the config, config.json and the weights: a line each
  int64_t parameters = 0;
  std::string mesh, backend;  // "[dp_shard=2]", "gloo"
  int64_t data_ranks = 1;     // that read different samples
  int64_t global_batch = 0;   // sequences per step
  int64_t micro_batches = 1;
  int64_t flops_per_token = 0;
  double peak_flops = 0;     // of this rank per second, measured
  int64_t device_bytes = 0;  // memory of the machine
  PlanSummary plan;
  int64_t planned_peak_bytes = 0;  // state and what is alive at once
  std::string datasets;            // a line for each source of samples
  int64_t last_step = 0;           // done before this start: 0, or the step that was resumed from

  int64_t tokens_per_step() const { return global_batch * config.training.seq_len; }
};

// The lines up to "Training starts at step N", each with its newline.
std::string start_text(const RunFacts& facts);

}  // namespace sfsdp::train
