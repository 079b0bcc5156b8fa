// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/op_trace.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/durable_file.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::train {
namespace {

std::string path_of(const JobConfig& config, int64_t step, int64_t rank, const char* name) {
  return concat(config.job.dump_folder, '/', config.profiling.save_traces_folder, "/iteration_", step, "/rank", rank,
                name);
}

}  // namespace

ProfilePhase profile_phase(const Profiling& config, int64_t step) {
  if (!config.enable_profiling) return ProfilePhase::Wait;
  const int64_t left =
      config.profile_freq - 1 - (step - 1) % config.profile_freq;  // steps of this round after this one
  if (left == 0) return ProfilePhase::ActiveAndWrite;
  if (left < config.profiler_active) return ProfilePhase::Active;
  return left < config.profiler_active + config.profiler_warmup ? ProfilePhase::WarmUp : ProfilePhase::Wait;
}

size_t OpTrace::lane_of(const std::string& name) {
  const auto found = std::ranges::find(lanes_, name);
  const auto lane = static_cast<size_t>(found - lanes_.begin());
  if (found == lanes_.end()) lanes_.push_back(name);
  return lane;
}

void OpTrace::add(const StepRuns& step) {
  for (const TaskRun& run : step.runs()) {
    const StepTask& task = step.tasks()[run.task];
    const ir::Op& op = *task.ops[0];
    const std::string name = ir::name_of(op);
    sim::TraceEvent event = {.name = task.ops.size() > 1 ? concat(name, " and ", task.ops.size() - 1, " more") : name,
                             .section = std::string(ir::to_string(op.section)),
                             .module = op.module_path,
                             .begin = run.begin_us * 1e-6,
                             .end = run.end_us * 1e-6,
                             .bytes = static_cast<int64_t>(task.bytes)};
    if (task.lane == 0) {
      events_.push_back(std::move(event));
      continue;
    }
    event.flow = collectives_++;
    event.bytes = ir::collective_bytes(op);
    sim::TraceEvent start = event, wait = event;
    start.kind = sim::Event::Start;
    start.name = "start " + name;
    start.end = start.begin;
    event.kind = sim::Event::Collective;
    event.lane = lane_of(step.lanes()[task.lane]);
    wait.kind = sim::Event::Wait;
    wait.name = "wait for " + name;
    for (sim::TraceEvent* of_collective : {&start, &event, &wait}) events_.push_back(std::move(*of_collective));
  }
  steps_.push_back({.name = concat("step ", step.step()),
                    .section = "step",
                    .begin = step.begin_us() * 1e-6,
                    .end = step.end_us() * 1e-6});
}

std::string OpTrace::json() const {
  sim::TraceText trace(rank_);
  trace.row(concat(R"({"ph":"M","pid":)", rank_, R"(,"name":"process_name","args":{"name":"rank )", rank_, R"("}})"));
  for (size_t lane = 0; lane < lanes_.size(); ++lane) trace.lane(lane, lanes_[lane]);
  trace.lane(lanes_.size(), "steps");
  for (const sim::TraceEvent& event : events_) trace.add(event);
  for (sim::TraceEvent step : steps_) {
    step.lane = lanes_.size();
    trace.add(step);
  }
  return trace.text();
}

std::string trace_path(const JobConfig& config, int64_t step, int64_t rank) {
  return path_of(config, step, rank, "_trace.json");
}

std::string table_path(const JobConfig& config, int64_t step, int64_t rank) {
  return path_of(config, step, rank, "_table.txt");
}

void write_trace(const std::string& path, const std::string& text) {
  std::error_code ignored;  // what is wrong with the folder, the file tells
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  write_atomically(path, text);
}

}  // namespace sfsdp::train
