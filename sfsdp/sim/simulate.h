// SPDX-License-Identifier: BSD-3-Clause
// Runs a step's graph on a described machine: an event simulation over the lanes of its plan. One compute lane per rank runs
// kernels in the graph's order; each communicator has a lane for its collectives, in the order of their starts, each when
// all its ranks have come; collectives of several communicators that pass one link at once share its bandwidth. Lanes wait
// for each other by the plan's edges: a kernel holds the compute lane until the collectives that it waits for are done.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sfsdp/cost/machine.h"
#include "sfsdp/cost/op_cost.h"
#include "sfsdp/ir/graph.h"
#include "sfsdp/sim/program.h"

namespace sfsdp::sim {

// How many timelines stand for the ranks.
enum class Timelines : uint8_t {
  Collapsed,  // one, where all ranks are alike; one each under jitter
  PerRank,
};

struct SimulateOptions {
  cost::Execution execution = cost::Execution::Fused;
  std::optional<cost::System> system = {};  // unset: cost::usual_system
  // Straggling: each kernel of rank r takes 1 + jitter · u longer, u in [0, 1) drawn from (seed, r). 0: all ranks alike.
  double jitter = 0;
  uint64_t seed = 0;
  Timelines timelines = Timelines::Collapsed;
  StepGathers step_gathers = StepGathers::Forward;
  Reductions reductions = Reductions::Overlap;
  int64_t reduce_bucket = 0;  // elements that are reduced at once (sim/reduction_buckets.h); 0: a unit's
  cost::Composites composites = {};
  const std::vector<plan::Edge>* edges = nullptr;  // of a plan of this graph; nullptr: those that its order needs
};

// What one rank does on one lane. Seconds from the step's begin.
struct Event {
  enum Kind : uint8_t {
    Kernel,
    Start,       // on the compute lane, takes no time
    Collective,  // on its communicator's lane
    Wait,        // on the compute lane, from when it is reached to when it is over: exposed communication
  } kind = Kernel;
  size_t lane = 0;             // of Simulation::lanes
  const ir::Op* op = nullptr;  // a kernel's first op
  int64_t position = 0;        // of that op in the graph
  double begin = 0, end = 0;
  double bytes = 0;   // that a kernel moves to and from memory, a collective between ranks
  int64_t flow = -1;  // the same for a start, its collective and its wait
};

struct Simulation {
  double step_seconds = 0;     // of the slowest rank
  double compute_seconds = 0;  // kernels, of rank 0
  // By kind: all_gather, reduce_scatter, all_reduce. Communication: from when all ranks have come to the end; contention:
  // what of that is due to links shared with other communicators; exposed: what rank 0's compute lane waited for.
  std::map<std::string, double> communication_seconds, contention_seconds, exposed_seconds;
  std::map<std::string, double> communicated_bytes;
  double flops = 0;                // of rank 0, counted in the graph: remat included
  std::vector<std::string> lanes;  // "compute", then the axes of each communicator: "dp_shard"
  std::vector<Event> events;       // of rank 0, by begin within a lane
  int64_t micro_batches = 1;
  cost::KernelTable kernels;  // what runs as one
  double exposed() const;
};

// "aten.mm %y", of a fused kernel "aten.neg %a and 3 more"; "start …" and "wait for …" of a collective's ends.
std::string event_name(const Simulation& simulation, const Event& event);

Simulation simulate(const ir::Graph& graph, const cost::Machine& machine, const SimulateOptions& options = {});

// Rank 0's times; all ranks are alike.
struct ProgramTimes {
  double step_seconds = 0, compute_seconds = 0;
  std::map<std::string, double> exposed_seconds;  // by kind of collective
};
// The sums of a simulation alone. At most four micro-batches are simulated; others take what the third does.
ProgramTimes time_program(const RankProgram& program, int64_t micro_batches);

}  // namespace sfsdp::sim
