// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/simulate_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <ostream>

#include "sfsdp/base/check.h"
#include "sfsdp/base/fixed.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/sim/report/op_classes.h"
#include "sfsdp/train/plan_summary.h"

namespace sfsdp::tools {
namespace {

double at_or_zero(const std::map<std::string, double>& by_kind, const std::string& kind) {
  const auto found = by_kind.find(kind);
  return found == by_kind.end() ? 0 : found->second;
}

// What rank 0 waited for, by the axes of the communicator: "dp_shard", "dp_shard cp".
std::map<std::string, double> exposed_by_axes(const sim::Simulation& simulation) {
  std::map<int64_t, size_t> lane_of;
  for (const sim::Event& event : simulation.events)
    if (event.kind == sim::Event::Collective) lane_of[event.flow] = event.lane;
  std::map<std::string, double> seconds;
  for (size_t lane = 1; lane < simulation.lanes.size(); ++lane) seconds[simulation.lanes[lane]] = 0;
  for (const sim::Event& event : simulation.events)
    if (event.kind == sim::Event::Wait) seconds[simulation.lanes[lane_of.at(event.flow)]] += event.end - event.begin;
  return seconds;
}

std::string by_stream(const sim::PyTorchMemory& memory, const std::function<std::string(std::string, int64_t)>& text) {
  std::vector<std::string> parts;
  for (size_t s = 0; s < sim::kPyTorchStreams; ++s)
    if (memory.reserved_by_stream.at(s) > 0)
      parts.push_back(
          text(std::string(sim::to_string(static_cast<sim::PyTorchStream>(s))), memory.reserved_by_stream.at(s)));
  return join(parts, ", ");
}

std::string pytorch_json(const SimulateReport& r) {
  if (!r.pytorch) return "";
  return concat(
      ", \"allocated_bytes\": ", r.pytorch->allocated_bytes, ", \"held_bytes\": ", r.pytorch->held_bytes,
      ", \"reserved_bytes\": ", r.pytorch->reserved_bytes, ", \"allocator_retries\": ", shortest(r.pytorch->retries),
      ", \"allocator_seconds\": ", shortest(r.allocator_seconds), ", \"reserved_by_stream\": {",
      by_stream(*r.pytorch,
                [](const std::string& name, int64_t bytes) { return concat(json_quoted(name), ": ", bytes); }),
      "}, \"loss\": ", json_quoted(r.loss), ", \"peak_at\": ", json_quoted(r.pytorch->peak_at),
      ", \"known_memory_error\": ", shortest(kKnownMemoryError));
}

std::string notes_json(const std::vector<std::string>& notes) {
  std::string text;
  for (const std::string& note : notes) text += concat(text.empty() ? ", \"notes\": [" : ", ", json_quoted(note));
  return notes.empty() ? "" : text + "]";
}

std::string op_classes_json(const sim::Simulation& simulation) {
  std::string text = "{";
  for (const sim::ClassShare& share : sim::op_classes(simulation))
    text += concat(text.size() > 1 ? ", " : "", json_quoted(share.name), ": {\"count\": ", share.count,
                   ", \"seconds\": ", shortest(share.seconds), ", \"bytes\": ", shortest(share.bytes),
                   ", \"flops\": ", shortest(share.flops), "}");
  return text + "}";
}

// Our plan was measured on processors (docs/benchmarks.md, 0.08 % at most), on no GPU; what is said of other systems has a
// known error.
std::string verdict(const SimulateReport& r) {
  const double distance = r.distance();
  if (!r.pytorch)
    return concat(r.fits() ? "fits" : "out of memory", "; plans are held against processors alone, to 0.1 %");
  const std::string far =
      concat(fixed(100 * std::abs(distance), 0), " % ", distance < 0 ? "above" : "below", " the limit");
  const std::string known = concat("nine of ten published peaks are within ", fixed(100 * kKnownMemoryError, 0), " %");
  if (!r.fits()) return concat("out of memory, ", far, "; ", known);
  if (distance < 0)
    return concat("what holds tensors fits, the allocator would keep more and gives that back, ", far, ": ",
                  fixed(r.pytorch->retries, 1), " retries and ", fixed(r.allocator_seconds * 1e3, 1), " ms a step, ",
                  r.counts_retries() ? "" : "not ", "counted; ", known);
  return concat(distance < kKnownMemoryError ? "may just fit, " : "fits, ", far, "; ", known);
}

std::string memory_line(const SimulateReport& r) {
  const auto device = static_cast<int64_t>(r.machine.memory_bytes);
  std::string limit = train::bytes_text(device);
  if (const int64_t outside = device - r.room_bytes(); outside > 0)
    limit += concat(" less ", train::bytes_text(outside), " for the driver and communicators");
  if (r.pytorch)
    return concat("Memory: state ", train::bytes_text(r.pytorch->state_bytes), ", allocated ",
                  train::bytes_text(r.pytorch->allocated_bytes), ", held ", train::bytes_text(r.pytorch->held_bytes),
                  ", reserved ", train::bytes_text(r.pytorch->reserved_bytes), " (",
                  by_stream(*r.pytorch, [](const std::string& name,
                                           int64_t bytes) { return concat(name, " ", train::bytes_text(bytes)); }),
                  "), the loss ", r.loss, ", of ", limit, ": ", verdict(r));
  const auto live = static_cast<double>(std::max<int64_t>(r.memory.live_bytes, 1));
  return concat("Memory: state ", train::bytes_text(r.memory.state_bytes), ", arena ",
                train::bytes_text(r.memory.arena_bytes), " (live ", train::bytes_text(r.memory.live_bytes), ", ×",
                fixed(static_cast<double>(r.memory.arena_bytes) / live, 3), "), peak ",
                train::bytes_text(r.peak_bytes()), " of ", limit, ": ", verdict(r));
}

}  // namespace

int64_t SimulateReport::peak_bytes() const {
  if (!pytorch) return memory.peak();
  return shows_allocated ? pytorch->allocated_bytes : pytorch->reserved_bytes;
}

int64_t SimulateReport::room_bytes() const {
  const int64_t counted = pytorch || memory.workspaces.empty() ? 0 : memory.workspace_bytes() - memory.workspaces[0];
  return static_cast<int64_t>(machine.memory_bytes) - std::max<int64_t>(outside_bytes - counted, 0);
}

double SimulateReport::distance() const {
  return 1 - static_cast<double>(peak_bytes()) / static_cast<double>(room_bytes());
}

bool SimulateReport::counts_retries() const {
  if (!pytorch || !fits()) return false;
  return static_cast<double>(pytorch->reserved_bytes) > (1 + kKnownMemoryError) * static_cast<double>(room_bytes());
}

bool SimulateReport::fits() const { return (pytorch ? pytorch->held_bytes : memory.peak()) <= room_bytes(); }

const char* mfu_formula(std::string_view model) {
  return model.starts_with("exported ") ? "6 N flops a token without attention, of the bf16 peak"
                                        : "6 N + 12 L H S flops a token, of the bf16 peak";
}

void print_report(std::ostream& out, const SimulateReport& r) {
  const sim::Simulation& s = r.simulation;
  out << "Step " << fixed(s.step_seconds * 1e3, 2) << " ms";
  if (r.tokens_per_second > 0)
    out << ", " << with_commas(r.tokens_per_second, 0) << " tokens/s per device, MFU " << fixed(100 * r.mfu, 2)
        << " % (" << mfu_formula(r.model) << ")";
  out << "\n"
      << "Compute " << fixed(s.compute_seconds * 1e3, 2) << " ms, exposed communication " << fixed(s.exposed() * 1e3, 2)
      << " ms\n";
  for (const auto& [kind, seconds] : s.communication_seconds) {
    out << "  " << kind << ": " << train::bytes_text(static_cast<int64_t>(s.communicated_bytes.at(kind))) << ", "
        << fixed(seconds * 1e3, 2) << " ms, exposed " << fixed(at_or_zero(s.exposed_seconds, kind) * 1e3, 2) << " ms";
    const double contention = at_or_zero(s.contention_seconds, kind) * 1e3;
    out << (contention >= 0.005 ? concat(", ", fixed(contention, 2), " ms of it for shared links\n") : "\n");
  }
  if (const auto by_axes = exposed_by_axes(s); by_axes.size() > 1) {
    std::vector<std::string> parts;
    for (const auto& [axes, seconds] : by_axes) parts.push_back(concat(axes, " ", fixed(seconds * 1e3, 2), " ms"));
    out << "  exposed over " << join(parts, ", ") << "\n";
  }
  out << memory_line(r) << "\n";
}

std::string report_setup(const SimulateReport& r) {
  return concat("mesh ", r.mesh, " · machine ", r.machine.name, " · ", r.execution, " execution · ",
                r.simulation.micro_batches, r.simulation.micro_batches == 1 ? " micro-batch" : " micro-batches",
                " a step · MFU of ", mfu_formula(r.model));
}

std::vector<std::pair<std::string, std::string>> report_figures(const SimulateReport& r) {
  const sim::Simulation& s = r.simulation;
  const auto ms = [](double seconds) { return with_commas(seconds * 1e3, 2) + " ms"; };
  const auto gib = [](int64_t bytes) { return train::bytes_text(bytes); };
  std::vector<std::pair<std::string, std::string>> figures = {{"step", ms(s.step_seconds)}};
  if (r.tokens_per_second > 0) {  // a plan alone does not say how many tokens it has
    figures.emplace_back("tokens/s per device", with_commas(r.tokens_per_second, 0));
    figures.emplace_back("MFU", fixed(100 * r.mfu, 2) + " %");
  }
  const std::vector<std::pair<std::string, std::string>> others = {
      {"compute", ms(s.compute_seconds)},
      {"exposed communication", ms(s.exposed())},
      {"peak memory", concat(gib(r.peak_bytes()), " of ", gib(static_cast<int64_t>(r.machine.memory_bytes)))},
      {"of it sharded state", gib(r.memory.state_bytes)}};
  figures.insert(figures.end(), others.begin(), others.end());
  return figures;
}

void print_report_json(std::ostream& out, const SimulateReport& r) {
  const sim::Simulation& s = r.simulation;
  const auto kinds = [&](const std::map<std::string, double>& by_kind) {
    std::string text = "{";
    for (const auto& [kind, value] : by_kind)
      text += concat(text.size() > 1 ? ", " : "", json_quoted(kind), ": ", shortest(value));
    return text + "}";
  };
  out << "{\"model\": " << json_quoted(r.model) << ", \"mesh\": " << json_quoted(r.mesh)
      << ", \"machine\": " << json_quoted(r.machine.name) << ", \"world\": " << r.world
      << ", \"execution\": " << json_quoted(r.execution) << ", \"step_seconds\": " << shortest(s.step_seconds)
      << (r.tokens_per_second > 0
              ? concat(", \"tokens_per_second\": ", shortest(r.tokens_per_second), ", \"mfu\": ", shortest(r.mfu))
              : "")
      << ", \"compute_seconds\": " << shortest(s.compute_seconds)
      << ", \"communication_seconds\": " << kinds(s.communication_seconds)
      << ", \"contention_seconds\": " << kinds(s.contention_seconds)
      << ", \"exposed_seconds\": " << kinds(s.exposed_seconds)
      << ", \"exposed_seconds_by_axes\": " << kinds(exposed_by_axes(s)) << ", \"op_classes\": " << op_classes_json(s)
      << notes_json(r.notes) << ", \"state_bytes\": " << r.memory.state_bytes
      << ", \"arena_bytes\": " << r.memory.arena_bytes << ", \"live_bytes\": " << r.memory.live_bytes
      << ", \"peak_bytes\": " << r.peak_bytes() << ", \"room_bytes\": " << r.room_bytes() << pytorch_json(r)
      << ", \"fits\": " << (r.fits() ? "true" : "false") << "}\n";
}

}  // namespace sfsdp::tools
