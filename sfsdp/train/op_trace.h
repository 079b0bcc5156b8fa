// SPDX-License-Identifier: BSD-3-Clause
// profiling.enable_profiling: when each op of a step ran, as a Chrome trace (chrome://tracing, ui.perfetto.dev). Torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/train/config/config.h"

namespace sfsdp::train {

// What to do in a step, as torch.profiler.schedule(wait, warmup, active) has it: of every profile_freq steps the last
// profiler_active are kept, those before are timed only, the rest run as they are.
enum class ProfilePhase : uint8_t { Wait, WarmUp, Active, ActiveAndWrite };
ProfilePhase profile_phase(const Profiling& config, int64_t step);

// The ops of some steps of one rank, which run one after the other: each begins where the one before it ended.
class OpTrace {
 public:
  explicit OpTrace(int64_t rank) : rank_(rank) {}

  void clear() { events_.clear(); }
  // Times are microseconds of one clock.
  void begin_step(int64_t step, double now_us);
  void ran(const ir::Op& op, double now_us);
  void end_step(double now_us);

  std::string json() const;

 private:
  struct Event {
    std::string name, category, value, module;
    double begin_us = 0, end_us = 0;
    int64_t bytes = 0;  // of the results
    int lane = 0;       // 0: steps, 1: computation, 2: communication
  };

  int64_t rank_;
  int64_t step_ = 0;
  double step_begin_us_ = 0, last_us_ = 0;
  std::vector<Event> events_;
};

// <dump_folder>/<save_traces_folder>/iteration_N/rankR_trace.json, TorchTitan's names.
std::string trace_path(const JobConfig& config, int64_t step, int64_t rank);
// Creates the folders.
//   throws: UserError if the file cannot be written
void write_trace(const std::string& path, const std::string& json);

}  // namespace sfsdp::train
