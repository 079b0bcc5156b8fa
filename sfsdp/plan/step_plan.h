// SPDX-License-Identifier: BSD-3-Clause
// The finished plan of a step, the same on every rank: the ops in their order, the order of each communicator's
// collectives, the address of every buffer. One text, which parses back and is hashed. `sfsdp plan` makes,
// verifies and prints it; the executor follows the order of the graph's ops alone, ranks compare the graph's text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/plan/memory_plan.h"

namespace sfsdp::plan {

// One communicator: its collectives run one after the other, each from its start to its wait.
struct CommLane {
  std::vector<std::string> axes;
  std::vector<const ir::Op*> collectives;  // starts, and collectives that block, in order
};

struct StepPlan {
  ir::Graph graph;
  std::vector<CommLane> lanes;  // all other ops run on the compute lane, in the graph's order
  MemoryPlan memory;
  int64_t alignment = 256;
};

StepPlan make_plan(const ir::Graph& graph, const MemoryOptions& options = {});

// print(parse(text)) == text for text that print wrote; the same text for the same plan.
std::string print(const StepPlan& plan);

// throws: UserError naming line, expected and got. Whether the plan is sound is verify's question.
StepPlan parse_plan(std::string_view text, const std::string& file_name = "");

uint64_t hash(const StepPlan& plan);

}  // namespace sfsdp::plan
