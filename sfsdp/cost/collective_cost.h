// SPDX-License-Identifier: BSD-3-Clause
// What a collective costs on a topology: latency of its steps plus bytes over the slowest link, under the fastest of
// NCCL's protocols and algorithms. Small messages thus reach less bandwidth than large ones, without a step between.
// Source: the α–β model; NCCL src/graph/tuning.cc for protocols, algorithms and their ratios. Across nodes too gathers and
// scatters are rings over all ranks: 4 nodes with 8 adapters of 50 GB/s reach a bus bandwidth of 369 GB/s, 46 each.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "sfsdp/cost/machine.h"

namespace sfsdp::cost {

// The ranks of one communicator: `size` of them, each `stride` ranks apart (1 for the innermost mesh axis).
struct GroupShape {
  int64_t size = 1;
  int64_t stride = 1;
};

// What a collective that has all links to itself spends, in seconds: its data passes the links inside the nodes and the
// network between them at the same time.
struct CollectiveCost {
  double latency = 0, node = 0, network = 0;
  double transfer() const { return std::max(node, network); }
  double seconds() const { return latency + transfer(); }
};

// One collective: what was measured of this many ranks on as many nodes, else the model.
//   bytes: of the whole tensor, which an all_gather results in and a reduce_scatter or an all_reduce begins with
//          of a permute what a rank sends
//          of an all_to_all what a rank has, a part for each; an all_to_all_v is taken for one, of rows that are shared out evenly
// `kind`: all_gather, reduce_scatter, all_reduce, broadcast, all_to_all, all_to_all_v, permute. 0 for a group of one.
CollectiveCost collective_cost(std::string_view kind, double bytes, GroupShape group, const Machine& machine);
double collective_seconds(std::string_view kind, double bytes, GroupShape group, const Machine& machine);

// How much longer a kernel takes while such a collective runs: 1 + the overlap_slowdown of the farthest link used.
double overlap_slowdown(GroupShape group, const Machine& machine);

}  // namespace sfsdp::cost
