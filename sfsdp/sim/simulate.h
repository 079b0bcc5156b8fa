// SPDX-License-Identifier: BSD-3-Clause
// Runs a step's graph on a described machine: an event simulation over lanes. One compute lane per rank runs kernels in
// the graph's order; collectives run on a communication lane, in the order of their starts, each when all its ranks have
// come; a wait holds the compute lane until its collective is done.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sfsdp/cost/machine.h"
#include "sfsdp/cost/op_cost.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::sim {

struct SimulateOptions {
  cost::Execution execution = cost::Execution::Fused;
  int64_t micro_batches = 1;
  // Straggling: each kernel of rank r takes 1 + jitter · u longer, u in [0, 1) drawn from (seed, r). 0: all ranks alike,
  // and one timeline stands for them.
  double jitter = 0;
  uint64_t seed = 0;
};

enum class Lane : uint8_t { Compute, Communication };

// What one rank does on one lane. Seconds from the step's begin.
struct Event {
  const ir::Op* op = nullptr;  // a kernel's first op, or a collective
  Lane lane = Lane::Compute;
  double begin = 0, end = 0;
};

struct Simulation {
  double step_seconds = 0;     // of the slowest rank
  double compute_seconds = 0;  // kernels, of rank 0
  // By kind: all_gather, reduce_scatter, all_reduce. Exposed: what the compute lane of rank 0 waited for.
  std::map<std::string, double> communication_seconds, exposed_seconds;
  std::map<std::string, double> communicated_bytes;
  double flops = 0;           // of rank 0, counted in the graph: recomputation included
  std::vector<Event> events;  // of rank 0, by begin within a lane
  cost::KernelTable kernels;  // what runs as one
  double exposed() const;
};

Simulation simulate(const ir::Graph& graph, const cost::Machine& machine, const SimulateOptions& options = {});

// Chrome's trace format, for Perfetto: a row per lane, arrows from a collective to its wait.
std::string chrome_trace(const Simulation& simulation);

}  // namespace sfsdp::sim
