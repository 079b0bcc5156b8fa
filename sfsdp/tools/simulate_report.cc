// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/simulate_report.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <ostream>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/train/plan_summary.h"

namespace sfsdp::tools {
namespace {

std::string fixed(double value, int digits) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

double at_or_zero(const std::map<std::string, double>& by_kind, const std::string& kind) {
  const auto found = by_kind.find(kind);
  return found == by_kind.end() ? 0 : found->second;
}

}  // namespace

void print_report(std::ostream& out, const SimulateReport& r) {
  const sim::Simulation& s = r.simulation;
  out << "Step " << fixed(s.step_seconds * 1e3, 2) << " ms, " << with_commas(r.tokens_per_second, 0)
      << " tokens/s per device, MFU " << fixed(100 * r.mfu, 2) << " % (" << kMfuFormula << ")\n"
      << "Compute " << fixed(s.compute_seconds * 1e3, 2) << " ms, exposed communication " << fixed(s.exposed() * 1e3, 2)
      << " ms\n";
  for (const auto& [kind, seconds] : s.communication_seconds) {
    out << "  " << kind << ": " << train::bytes_text(static_cast<int64_t>(s.communicated_bytes.at(kind))) << ", "
        << fixed(seconds * 1e3, 2) << " ms, exposed " << fixed(at_or_zero(s.exposed_seconds, kind) * 1e3, 2) << " ms";
    const double contention = at_or_zero(s.contention_seconds, kind) * 1e3;
    out << (contention >= 0.005 ? concat(", ", fixed(contention, 2), " ms of it for shared links\n") : "\n");
  }
  const auto live = static_cast<double>(std::max<int64_t>(r.memory.live_bytes, 1));
  out << "Memory: state " << train::bytes_text(r.memory.state_bytes) << ", arena "
      << train::bytes_text(r.memory.arena_bytes) << " (live " << train::bytes_text(r.memory.live_bytes) << ", ×"
      << fixed(static_cast<double>(r.memory.arena_bytes) / live, 3) << "), peak " << train::bytes_text(r.memory.peak())
      << " of " << train::bytes_text(static_cast<int64_t>(r.machine.memory_bytes)) << ": "
      << (r.fits() ? "fits" : "out of memory") << "\n";
}

std::string report_setup(const SimulateReport& r) {
  return concat("mesh ", r.mesh, " · machine ", r.machine.name, " · ", r.execution, " execution · ",
                r.simulation.micro_batches, r.simulation.micro_batches == 1 ? " micro-batch" : " micro-batches",
                " a step · MFU of ", kMfuFormula);
}

std::vector<std::pair<std::string, std::string>> report_figures(const SimulateReport& r) {
  const sim::Simulation& s = r.simulation;
  const auto ms = [](double seconds) { return with_commas(seconds * 1e3, 2) + " ms"; };
  const auto gib = [](int64_t bytes) { return train::bytes_text(bytes); };
  return {{"step", ms(s.step_seconds)},
          {"tokens/s per device", with_commas(r.tokens_per_second, 0)},
          {"MFU", fixed(100 * r.mfu, 2) + " %"},
          {"compute", ms(s.compute_seconds)},
          {"exposed communication", ms(s.exposed())},
          {"peak memory", concat(gib(r.memory.peak()), " of ", gib(static_cast<int64_t>(r.machine.memory_bytes)))},
          {"of it sharded state", gib(r.memory.state_bytes)}};
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
      << ", \"tokens_per_second\": " << shortest(r.tokens_per_second) << ", \"mfu\": " << shortest(r.mfu)
      << ", \"compute_seconds\": " << shortest(s.compute_seconds)
      << ", \"communication_seconds\": " << kinds(s.communication_seconds)
      << ", \"contention_seconds\": " << kinds(s.contention_seconds)
      << ", \"exposed_seconds\": " << kinds(s.exposed_seconds) << ", \"state_bytes\": " << r.memory.state_bytes
      << ", \"arena_bytes\": " << r.memory.arena_bytes << ", \"live_bytes\": " << r.memory.live_bytes
      << ", \"peak_bytes\": " << r.memory.peak() << ", \"fits\": " << (r.fits() ? "true" : "false") << "}\n";
}

}  // namespace sfsdp::tools
