// SPDX-License-Identifier: BSD-3-Clause
// profiling.enable_profiling: when each kernel of a step ran, as a Chrome trace (chrome://tracing, ui.perfetto.dev). Torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/sim/report/trace.h"
#include "sfsdp/train/config/config.h"
#include "sfsdp/train/step_runs.h"

namespace sfsdp::train {

// What to do in a step, as torch.profiler.schedule(wait, warmup, active) has it: of every profile_freq steps the last
// profiler_active are kept, those before are timed only, the rest run as they are.
enum class ProfilePhase : uint8_t { Wait, WarmUp, Active, ActiveAndWrite };
ProfilePhase profile_phase(const Profiling& config, int64_t step);

// Some steps of one rank in the form of a simulated one (sim/report/trace.h): a row per lane, on the compute row the start of a
// collective and the wait for it, which takes all of its time. The last row has the steps.
class OpTrace {
 public:
  explicit OpTrace(int64_t rank) : rank_(rank) {}

  void clear() { *this = OpTrace(rank_); }
  void add(const StepRuns& step);
  std::string json() const;

 private:
  size_t lane_of(const std::string& name);

  int64_t rank_;
  std::vector<std::string> lanes_ = {"compute"};
  std::vector<sim::TraceEvent> events_, steps_;  // of steps_ no event has its lane yet
  int64_t collectives_ = 0;
};

// <dump_folder>/<save_traces_folder>/iteration_N/rankR_trace.json, TorchTitan's names; rankR_table.txt beside it.
std::string trace_path(const JobConfig& config, int64_t step, int64_t rank);
std::string table_path(const JobConfig& config, int64_t step, int64_t rank);
// Creates the folders.
//   throws: UserError if the file cannot be written
void write_trace(const std::string& path, const std::string& text);

}  // namespace sfsdp::train
