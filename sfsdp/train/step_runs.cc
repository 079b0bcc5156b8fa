// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/step_runs.h"

#include <algorithm>

#include "sfsdp/base/strings.h"
#include "sfsdp/cost/kernels.h"
#include "sfsdp/cost/op_cost.h"
#include "sfsdp/plan/lanes.h"

namespace sfsdp::train {
namespace {

// A rank reads what all ranks have of a gather and writes it, reads all of what is reduced and writes its part.
double bytes_of_collective(const ir::Op& op) {
  const int64_t bytes = ir::collective_bytes(op);
  return static_cast<double>(bytes + std::min(bytes, op.result()->type().bytes()));
}

}  // namespace

StepRuns::StepRuns(const ir::Graph& graph) {
  const cost::Kernels kernels = cost::kernels_of(graph);
  const std::vector<cost::KernelWork> work = cost::work_of_kernels(graph, kernels);
  for (size_t k = 0; k < kernels.ops.size(); ++k) {
    for (const ir::Op* op : kernels.ops[k]) task_of_[op] = tasks_.size();
    tasks_.push_back(
        {.ops = kernels.ops[k], .flops = work[k].flops, .bytes = work[k].bytes, .sum_bytes = work[k].sum_bytes});
  }
  for (const plan::CommLane& lane : plan::communicators(graph)) {
    for (const ir::Op* op : lane.collectives) {
      task_of_[op] = tasks_.size();
      tasks_.push_back({.ops = {op}, .lane = lanes_.size(), .bytes = bytes_of_collective(*op)});
    }
    lanes_.push_back(lane.axes.empty() ? "one rank" : join(lane.axes, ","));
  }
}

void StepRuns::begin(int64_t step, double now_us) {
  step_ = step;
  begin_us_ = last_us_ = now_us;
}

// The first op of a kernel has its time, the others come at once after it.
void StepRuns::ran(const ir::Op& op, double now_us) {
  if (const auto found = task_of_.find(&op); found != task_of_.end()) {
    if (runs_.empty() || runs_.back().task != found->second || runs_.back().complete)
      runs_.push_back({found->second, last_us_, now_us});
    runs_.back().end_us = now_us;
    runs_.back().complete = tasks_[found->second].ops.back() == &op;
  }
  last_us_ = now_us;
}

// Where a kernel has run, what was told of it before is none of its runs.
void StepRuns::end(double now_us) {
  std::vector<bool> completes(tasks_.size(), false);
  for (const TaskRun& run : runs_)
    if (run.complete) completes[run.task] = true;
  std::erase_if(runs_, [&](const TaskRun& run) { return !run.complete && completes[run.task]; });
  end_us_ = now_us;
}

}  // namespace sfsdp::train
