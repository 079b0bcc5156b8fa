// SPDX-License-Identifier: BSD-3-Clause
// What a step takes on meshes that it was not compiled for: its program, whose kernels, collectives and buffers are a part
// that no mesh changes and a part that shrinks as 1 / shards. Two compilations give both; another mesh is then timed by the
// simulator's lanes in some 100 microseconds, without passes and kernels.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sfsdp/cost/machine.h"
#include "sfsdp/ir/graph.h"
#include "sfsdp/plan/step_plan.h"
#include "sfsdp/sim/program.h"

namespace sfsdp::tune {

struct ScaledEstimate {
  double seconds = 0, compute_seconds = 0;
  std::map<std::string, double> exposed_seconds;  // by kind of collective
  int64_t peak_bytes = 0;                         // alive at once in each region, with state and workspaces
};

class ScaledStep {
 public:
  // Plans of one step on two meshes that have the same axes and different numbers of shards, or twice the same
  // one. Both
  // have one micro-batch, or both several.
  // Throws InternalError where they differ in more than sizes.
  ScaledStep(const plan::StepPlan& a, const plan::StepPlan& b, const cost::Machine& machine);

  //   mesh: the same axes, any sizes; of shards 1 only where it is in the graphs
  //   micro_batches: 1 if it is in the graphs, else any number above 1
  ScaledEstimate at(const std::vector<ir::MeshAxis>& mesh, int64_t micro_batches);

 private:
  // same + shared / shards
  struct Scaled {
    double same = 0, shared = 0;
    double at(double shards) const { return same + shared / shards; }
  };
  Scaled fit(double a, double b) const;
  void price_collectives(const std::vector<ir::MeshAxis>& mesh, double shards);

  cost::Machine machine_;
  std::string axis_;  // that stored parameters are cut over
  double shards_a_ = 1, shards_b_ = 1;
  sim::RankProgram program_;               // a stretch of kernels is one
  std::vector<Scaled> seconds_;            // by kernel of program_
  std::vector<Scaled> bytes_;              // by collective
  std::vector<std::vector<Scaled>> live_;  // by region and op
  Scaled outside_;                         // of regions: state and workspaces
};

}  // namespace sfsdp::tune
