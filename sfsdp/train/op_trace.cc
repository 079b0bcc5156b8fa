// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/op_trace.h"

#include <filesystem>

#include "sfsdp/base/check.h"
#include "sfsdp/base/durable_file.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::train {
namespace {

constexpr const char* kLanes[] = {"steps", "computation", "communication"};

// Three decimals: nanoseconds.
std::string microseconds(double value) {
  std::ostringstream out;
  out.precision(3);
  out << std::fixed << value;
  return out.str();
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

void OpTrace::begin_step(int64_t step, double now_us) {
  step_ = step;
  step_begin_us_ = last_us_ = now_us;
}

void OpTrace::ran(const ir::Op& op, double now_us) {
  Event event = {op.opcode, std::string(ir::to_string(op.section)), "", op.module_path, last_us_, now_us, 0, 1};
  if (ir::is_collective(op) || ir::is_wait(op)) event.lane = 2;
  if (!op.results().empty()) event.value = "%" + op.result()->name();
  for (const auto& result : op.results())
    if (result->type().kind == ir::Type::Kind::Tensor) event.bytes += result->type().bytes();
  events_.push_back(std::move(event));
  last_us_ = now_us;
}

void OpTrace::end_step(double now_us) {
  events_.push_back({concat("step ", step_), "step", "", "", step_begin_us_, now_us, 0, 0});
}

std::string OpTrace::json() const {
  std::string text = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  for (int lane = 0; lane < 3; ++lane)
    text += concat("{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": ", rank_, ", \"tid\": ", lane,
                   ", \"args\": {\"name\": \"", kLanes[lane], "\"}},\n");
  for (const Event& e : events_) {
    text += concat("{\"name\": ", json_quoted(e.name), ", \"cat\": ", json_quoted(e.category),
                   ", \"ph\": \"X\", \"ts\": ", microseconds(e.begin_us),
                   ", \"dur\": ", microseconds(e.end_us - e.begin_us), ", \"pid\": ", rank_, ", \"tid\": ", e.lane);
    if (e.lane > 0)
      text += concat(", \"args\": {\"value\": ", json_quoted(e.value), ", \"module\": ", json_quoted(e.module),
                     ", \"bytes\": ", e.bytes, "}");
    text += "},\n";
  }
  return concat(text, "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": ", rank_, ", \"args\": {\"name\": \"rank ",
                rank_, "\"}}\n]}\n");
}

std::string trace_path(const JobConfig& config, int64_t step, int64_t rank) {
  return concat(config.job.dump_folder, '/', config.profiling.save_traces_folder, "/iteration_", step, "/rank", rank,
                "_trace.json");
}

void write_trace(const std::string& path, const std::string& json) {
  std::error_code ignored;  // what is wrong with the folder, the file tells
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  write_atomically(path, json);
}

}  // namespace sfsdp::train
