// SPDX-License-Identifier: BSD-3-Clause
// What is over when a task of a plan begins, by its lanes' order and its edges alone: vector clocks, a component for each lane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/plan/step_plan.h"

namespace sfsdp::plan {

// By lane, how many of its runs are over.
using Clock = std::vector<int64_t>;

// One run of a task, the first of a lane being 1.
struct Run {
  size_t lane = 0;
  int64_t number = 0;
};

inline bool is_over(const Run& run, const Clock& clock) { return clock[run.lane] >= run.number; }

// Lane 0 computes, then come the communicators' lanes, and that of the host, which has one task: it writes the batch. Runs come in
// the program's order: begin(), what the task does, finish().
class LaneClocks {
 public:
  explicit LaneClocks(const StepPlan& plan);

  size_t host() const { return host_; }
  size_t lanes() const { return host_ + 1; }
  std::string name_of(size_t lane) const;

  // The next run of its lane; now() of that lane then says what is over.
  Run begin(const Task& task);
  const Clock& now(size_t lane) const { return now_[lane]; }
  void finish(const Task& task, const Run& run);
  // Its latest run that is finished; it must have one.
  Run latest(const Task& task) const { return {task.lane, latest_[task.lane].at(task.number)}; }

 private:
  const StepPlan& plan_;
  const size_t host_;
  std::vector<std::pair<Task, Task>> before_;  // the ends of edges with their begins, sorted
  std::vector<Clock> now_;                     // by lane, after its latest run
  std::vector<std::vector<Clock>> runs_;       // by lane and run, once it is over
  std::vector<std::vector<int64_t>> latest_;   // by lane and task, the number of its latest run; 0: none
};

}  // namespace sfsdp::plan
