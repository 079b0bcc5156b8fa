// SPDX-License-Identifier: BSD-3-Clause
// What `sfsdp simulate` found, as text, as JSON and as the head of its page.
#pragma once

#include <iosfwd>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/cost/machine.h"
#include "sfsdp/plan/memory_plan.h"
#include "sfsdp/sim/pytorch/memory.h"
#include "sfsdp/sim/simulate.h"

namespace sfsdp::tools {

struct SimulateReport {
  std::vector<std::string> notes;  // keys of the config that change nothing here
  std::string model, mesh, execution;
  cost::Machine machine;
  int64_t world = 1;
  int64_t outside_bytes = 0;  // of the device's memory: cost::bytes_outside
  sim::Simulation simulation;
  plan::MemoryPlan memory;
  std::optional<sim::PyTorchMemory> pytorch;  // of executions that are PyTorch's
  double allocator_seconds = 0;  // pytorch: a step's, in which its full allocator gives back and asks again
  std::string loss;              // pytorch: separate, kept or fused
  bool shows_allocated = false;  // pytorch: the peak is what tensors have, not what the allocator holds
  double tokens_per_second = 0;  // per device; 0: not known, as of a plan alone
  double mfu = 0;                // of the machine's bf16 peak, by mfu_formula
  int64_t peak_bytes() const;
  // What the device has beside the driver's context and the communicators' buffers (cost::bytes_outside); a plan has counted a
  // part of these buffers itself.
  int64_t room_bytes() const;
  // An allocator that runs full gives back the segments and pages without tensors, so PyTorch runs as long as the others fit.
  bool fits() const;
  // Whether the step is longer by allocator_seconds: what is reserved is above the room by more than its known error.
  bool counts_retries() const;
  // How far the peak is below that room, as a share of it; negative: above.
  double distance() const;
};

// How far nine of ten published peaks are at most from what is said of PyTorch's systems (docs/benchmarks.md).
inline constexpr double kKnownMemoryError = 0.10;

// The model by its printed name: an archive does not say what attention is.
const char* mfu_formula(std::string_view model);

void print_report(std::ostream& out, const SimulateReport& report);
// What the head of the HTML page says: the setup in a line, and name and value of its figures.
std::string report_setup(const SimulateReport& report);
std::vector<std::pair<std::string, std::string>> report_figures(const SimulateReport& report);
// One object, one line.
void print_report_json(std::ostream& out, const SimulateReport& report);

}  // namespace sfsdp::tools
