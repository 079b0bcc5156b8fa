// SPDX-License-Identifier: BSD-3-Clause
// What a step has run, and when: the kernels and collectives of its graph, told of op by op. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "sfsdp/ir/graph.h"

namespace sfsdp::train {

// A kernel, or a collective.
struct StepTask {
  std::vector<const ir::Op*> ops;  // in the graph's order; of a collective it alone
  size_t lane = 0;                 // 0: compute, else of StepRuns::lanes
  double flops = 0;                // products and attention
  double bytes = 0;                // read and written on this rank; of a collective what it reads of others too
  double sum_bytes = 0;            // of them those that read what earlier micro-batches have added up
};

struct TaskRun {
  size_t task = 0;
  double begin_us = 0, end_us = 0;
  bool complete = false;  // its last op has been told of
};

// One step. Its kernels and collectives run one after the other: each begins where the op before it ended. An executor tells
// of a kernel's ops once the kernel is over, of one that another op of it computes perhaps before the kernel has run.
class StepRuns {
 public:
  explicit StepRuns(const ir::Graph& graph);  // whose ops must outlive it

  // Times are microseconds of one clock.
  void begin(int64_t step, double now_us);
  void ran(const ir::Op& op, double now_us);
  void end(double now_us);

  int64_t step() const { return step_; }
  double begin_us() const { return begin_us_; }
  double end_us() const { return end_us_; }
  // "compute", then a communicator each, named as the simulator names them.
  const std::vector<std::string>& lanes() const { return lanes_; }
  const std::vector<StepTask>& tasks() const { return tasks_; }
  const std::vector<TaskRun>& runs() const { return runs_; }

 private:
  std::vector<std::string> lanes_ = {"compute"};
  std::vector<StepTask> tasks_;
  std::unordered_map<const ir::Op*, size_t> task_of_;  // of ops that move data
  int64_t step_ = 0;
  double begin_us_ = 0, end_us_ = 0, last_us_ = 0;
  std::vector<TaskRun> runs_;
};

}  // namespace sfsdp::train
