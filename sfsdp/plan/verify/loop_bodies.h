// SPDX-License-Identifier: BSD-3-Clause
// The loops of a plan's graph in the memory model: what their bodies touch, under which names what they carry lies in memory, and
// what comes before what.
#pragma once

#include <unordered_set>
#include <vector>

#include "sfsdp/cost/kernels.h"
#include "sfsdp/ir/loops.h"
#include "sfsdp/ir/side_table.h"
#include "sfsdp/plan/verify/memory_model.h"

namespace sfsdp::plan {

// A loop, and what its body has to do with memory.
struct Body {
  ir::Loop loop;
  std::vector<const ir::Value*> reads;  // storages that are made outside
  std::vector<const ir::Value*> makes;  // what lies elsewhere than what the loop carries
  Run begun = {};                       // the latest run of its first task
};

class LoopBodies {
 public:
  //   inside_kernels: made and read by one kernel alone
  //   trips: of each loop
  LoopBodies(const StepPlan& plan, const std::unordered_set<const ir::Value*>& inside_kernels, int64_t trips,
             const LaneClocks& clocks, MemoryModel& memory);

  // The one that an op begins or ends, or nullptr.
  Body* with_border(const ir::Op& op);
  // What is carried goes on under the name that a trip begins with.
  void begin_trip(const Body& body);
  // After its first task has run, and before its last one does.
  void begin(Body& body, const Run& run, const Clock& clock);
  void end(const Body& body, const Run& run, const Clock& clock);
  // A lane other than that of the loop's tasks learns from them how many trips there are.
  void check_begun(const ir::Op& op, const Run& run, const Clock& clock);

 private:
  void rename(const std::vector<const ir::Value*>& from, const std::vector<const ir::Value*>& to, const Body& body);
  void touch(const Body& body, const ir::Op& op, const Run& run, Clock clock);

  const StepPlan& plan_;
  const int64_t trips_;
  const LaneClocks& clocks_;
  MemoryModel& memory_;
  ir::OpTable<size_t> position_;
  ir::OpTable<Task> collective_;  // the tasks of collectives
  std::vector<Body> bodies_;
};

}  // namespace sfsdp::plan
