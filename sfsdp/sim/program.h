// SPDX-License-Identifier: BSD-3-Clause
// What one rank does in a step, in order: stretches of kernels, starts of collectives, waits for them. Every rank has the
// same program; the simulation runs it on each.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sfsdp/cost/collective_cost.h"
#include "sfsdp/cost/machine.h"
#include "sfsdp/cost/op_cost.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::sim {

// A step is Head, then forward, loss and backward of each micro-batch (Body, of the last one Last, which also has what
// runs once), then Tail.
enum class Part : uint8_t { Head, Body, Last, Tail };
inline constexpr size_t kParts = 4;
// Last for what every micro-batch runs.
Part part_of(ir::Section section);

// When the gathers that run once per step are waited for (ZeRO stages 1 and 2), and what they are.
enum class StepGathers : uint8_t {
  Forward,  // where forward reads them: our plan, Megatron-LM's overlap-param-gather
  Update,   // all of them after the update, before forward begins: DeepSpeed
  Broadcast,  // the same, each rank in turn broadcasts its shard, and gradients are all-reduced where a shard would do: DDP
              // with PyTorch's ZeroRedundancyOptimizer
};

struct Collective {
  const ir::Op* op = nullptr;
  int64_t position = 0;  // in the graph
  Part part = Part::Last;
  std::string kind;  // all_gather, …
  double bytes = 0;  // of the larger side: what a gather makes, what a reduction reads
  cost::CollectiveCost cost;
  double slowdown = 1;  // what kernels take longer while it runs
  size_t communicator = 0;
  int64_t turn = 0;           // how many of its part come before it on its communicator
  int64_t body_turn = 0;      // Last: the same in Body
  bool waits_repeat = false;  // each micro-batch waits for it: it starts before all of them
};

struct Task {
  enum Kind : uint8_t { Compute, Start, Wait } kind = Compute;
  size_t first = 0, count = 0;  // Compute: kernels in `order`
  size_t collective = 0;        // Start, Wait
  int64_t position = 0;         // Start, Wait: of the op in the graph
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
RankProgram make_program(const ir::Graph& graph, const cost::Machine& machine, cost::Execution execution,
                         cost::System system, StepGathers gathers = StepGathers::Forward);

}  // namespace sfsdp::sim
