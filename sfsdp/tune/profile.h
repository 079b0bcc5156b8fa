// SPDX-License-Identifier: BSD-3-Clause
// A step boiled down to what the greedy rule and the memory of units depend on: when each parameter is read and its gradient
// made, on a clock of compute alone, and what is alive meanwhile.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/cost/collective_cost.h"
#include "sfsdp/cost/machine.h"
#include "sfsdp/cost/op_cost.h"
#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/overlap/schedule.h"

namespace sfsdp::tune {

// Parameters of one kind may share a bucket: the same dtypes, collectives and update.
struct KindProfile {
  int64_t ranks = 1;      // that share a bucket
  int64_t alignment = 1;  // elements, of each parameter in its bucket and of each rank's shard
  double stored = 0;      // bytes an element, as stored, gathered (0: never gathered) and reduced (0: not trained)
  double gathered = 0, reduced = 0;
  cost::GroupShape gather_group, reduce_group;
  std::string reduction;  // of backward: reduce_scatter, all_reduce; "": none
  bool once = false;      // it reduces what all micro-batches have added up
  bool replicas = false;  // the last micro-batch reduces over replicas too
};

// Positions are those of ops in the graph with all parameters in one unit; -1: never.
struct ParamProfile {
  std::string name;
  size_t kind = 0;
  int64_t elements = 0;  // rounded up to the alignment
  int64_t fwd_first = -1, fwd_last = -1, bwd_first = -1, bwd_last = -1;
  int64_t gradient = -1;                           // where it is ready to be packed
  int64_t gradient_made = -1, gradient_bytes = 0;  // what is in memory until then
  double backward_seconds = 0;  // of compute between the gradient made before its own, of any parameter, and its own
};

struct StepProfile {
  std::vector<ParamProfile> params;  // in the order in which forward reads them first
  std::vector<KindProfile> kinds;
  std::vector<double> clock;  // by position: seconds of kernels before it, those of buckets left out
  int64_t body_begin = 0, backward_begin = 0, body_end = 0;
  // Bytes alive at position p (entry 2 p) and between it and the next (2 p + 1), those of buckets left out.
  std::vector<int64_t> live;
  int64_t state_bytes = 0;
  int64_t micro_batches = 1;
  int64_t max_gather_bytes = 0;  // of gathers in flight besides one (PrefetchGathersOptions::max_bytes); 0: no bound
  passes::UnitSchedule order;    // that units begin with: as the passes' options say
  int64_t kept = -1;  // parameter whose unit stays gathered in any case (ReshardOptions::keep_last); -1: none
  cost::Machine machine;

  double seconds_between(int64_t from, int64_t to) const;  // of forward or backward, whichever a param's reads span
};

// Why a unit ends where it ends.
enum class Reason : uint8_t { Named, LastParameter, Gather, Reduction, Memory, Search };
std::string_view to_string(Reason reason);
Reason parse_reason(std::string_view text);  // Named for a text that is none of them

// One unit: parameters [first, end) of the profile.
struct UnitChoice {
  size_t first = 0, end = 0;
  bool keep = false;  // gathered once for forward and backward
  passes::UnitSchedule order = {};
  Reason reason = Reason::Named;
  bool operator==(const UnitChoice&) const = default;
};
using Schedule = std::vector<UnitChoice>;

// Fills in backward_seconds: the compute of backward, shared out over the gradients in the order in which they are made.
void share_out_backward(StepProfile& profile);

//   graph: as data parallelism, the optimizer and remat left it, each parameter by itself
// Throws UserError where parameters are stored otherwise already.
StepProfile profile_step(const ir::Graph& graph, const cost::Machine& machine);

}  // namespace sfsdp::tune
