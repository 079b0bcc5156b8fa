// SPDX-License-Identifier: BSD-3-Clause
// The buckets of a simulated step: each collective of the graph with what it took.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/sim/simulate.h"

namespace sfsdp::sim {

struct BucketRow {
  std::string name;  // of the value it makes
  std::string unit;  // of the parameters it serves; "": it serves none
  std::string communicator, kind, section;
  int64_t runs = 1;                 // in a step: once per micro-batch in forward and backward
  double bytes = 0;                 // of one run
  double seconds = 0, exposed = 0;  // of all runs
  // Units whose compute lies between start and wait; 0: it is waited for where it starts.
  int64_t distance = 0;
  std::string reason;  // why its parameters are one bucket
};

// In the graph's order.
//   rules: by unit, what made its parameters one: passes::wrap_rules
std::vector<BucketRow> bucket_table(const ir::Graph& graph, const Simulation& simulation,
                                    const std::map<std::string, std::string>& rules);

}  // namespace sfsdp::sim
