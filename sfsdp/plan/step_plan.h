// SPDX-License-Identifier: BSD-3-Clause
// The finished plan of a step, the same on every rank: which ops a kernel computes, what runs on which lane in which order, what waits for what,
// where each buffer lies. One text, which parses back and is hashed. Ranks compare its hash before they run it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/plan/lanes.h"
#include "sfsdp/plan/memory_plan.h"
#include "sfsdp/plan/storage_layout.h"

namespace sfsdp::plan {

// The storage layout that a plan was made with, as far as it went then: plan::hash of its first `entries`.
struct LayoutStamp {
  uint64_t hash = 0;
  int64_t entries = 0;
  bool operator==(const LayoutStamp&) const = default;
};

struct StepPlan {
  ir::Graph graph;              // its ops in order; kernel=N says what runs as one
  std::vector<CommLane> lanes;  // beside the compute lane
  std::vector<Edge> edges;      // sorted
  HostLoad load;
  MemoryPlan memory;
  cost::Target target;  // whose name and alignments are part of the plan
  // By entry of memory.constants: xxh3 of its elements' bytes in row-major order. None of a scalar, whose value stands in the graph,
  // and of all where the plan was made without values: then there are no entries, or none that has bits.
  std::vector<std::optional<uint64_t>> constant_bits = {};
  std::optional<LayoutStamp> layout = {};  // none: a graph by itself, which shares its state with no other
};

// The one place where lanes, edges and addresses are decided.
StepPlan make_plan(ir::Graph graph, const MemoryOptions& options = {});
// The same on the state of a run. What the graph reads and `layout` has not is appended to it; an empty layout is decided here.
//   shapes: of the graph before its parameters went into flat buffers
StepPlan make_plan(ir::Graph graph, MemoryOptions options, StorageLayout& layout, const GlobalShapes& shapes = {});

// What stands there for an entry of memory.constants; nullopt: not known.
std::optional<uint64_t> bits_of_constant(const StepPlan& plan, size_t entry);

// print(parse(text)) == text for text that print wrote; the same text for the same plan.
std::string print(const StepPlan& plan);

// throws: UserError naming line, expected and got. Whether the plan is sound is verify's question.
StepPlan parse_plan(std::string_view text, const std::string& file_name = "");

uint64_t hash(const StepPlan& plan);

}  // namespace sfsdp::plan
