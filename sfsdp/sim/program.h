// SPDX-License-Identifier: BSD-3-Clause
// What one rank does in a step, as the lanes of its plan and the edges between them say: stretches of kernels, and between
// them which collectives may start and which are waited for. Every rank has the same program; the simulation runs it on each.
// Loops of further rounds (passes/memory/further_rounds.h) make no trip, as choices of experts are taken to be even; other loops are refused.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sfsdp/cost/op_cost.h"
#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/part.h"
#include "sfsdp/plan/lanes.h"
#include "sfsdp/sim/collective_rules.h"

namespace sfsdp::sim {

using ir::kParts, ir::Part, ir::part_of;

struct Collective {
  const ir::Op* op = nullptr;
  int64_t position = 0;  // in the graph
  Part part = Part::Last;
  std::string kind;  // all_gather, …
  double bytes = 0;  // of the larger side: what a gather makes, what a reduction reads
  cost::CollectiveCost cost;
  double slowdown = 1;  // what kernels take longer while it runs
  size_t communicator = 0;
  int64_t turn = 0;        // how many of its part come before it on its communicator
  int64_t early_turn = 0;  // Last: the same in First and Middle
};

struct Task {
  enum Kind : uint8_t { Compute, Start, Wait } kind = Compute;
  size_t first = 0, count = 0;  // Compute: kernels in `order`
  size_t collective = 0;        // Start, Wait
  int64_t position = 0;         // Start, Wait: of the op in the graph
  bool previous = false;        // Wait: for the run of the micro-batch before, if there was one
};

struct RankProgram {
  cost::KernelTable kernels;
  std::vector<size_t> order;             // kernels as they run, one part after the other
  std::vector<int64_t> kernel_position;  // by kernel: where in the graph it runs
  std::vector<Collective> collectives;
  std::vector<std::vector<std::string>> communicators;  // their axes
  std::vector<cost::GroupShape> groups;                 // by communicator: its ranks
  std::array<std::vector<int64_t>, kParts> turns;       // by part and communicator: collectives in one pass
  std::array<std::vector<Task>, kParts> tasks;
};

// The ranks of a collective over `axes`, by their stride: that of the innermost axis it names.
cost::GroupShape shape_of(const std::vector<ir::MeshAxis>& mesh, const std::vector<std::string>& axes);
// A collective starts once the kernels are over from which edges lead to it, and as soon as that; a kernel waits for the
// collectives from which edges lead to it. An edge between two communicators holds the compute lane too.
//   edges: of a plan of this graph; nullptr: plan::make_edges, from the graph's starts and waits. Not looked at where collectives
//          block where they start (Execution::Reference, gathers other than Forward,
//          reductions that block)
RankProgram make_program(const ir::Graph& graph, const cost::Machine& machine, cost::Execution execution,
                         cost::System system, StepGathers gathers = StepGathers::Forward,
                         const cost::Composites& composites = {}, const std::vector<plan::Edge>* edges = nullptr,
                         Reductions reductions = Reductions::Overlap);

}  // namespace sfsdp::sim
