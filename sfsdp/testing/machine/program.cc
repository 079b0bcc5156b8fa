// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/machine/program.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "sfsdp/cost/kernels.h"
#include "sfsdp/ir/loops.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/side_table.h"

namespace sfsdp::plan::machine {
namespace {

using ir::Op;

class Writer {
 public:
  explicit Writer(const StepPlan& plan)
      : plan_(plan),
        kernels_(cost::kernels_of(plan.graph)),
        host_{plan.lanes.size() + 1, 0},
        lane_of_(plan.graph),
        loops_(ir::loops_of(plan.graph)) {
    for (size_t lane = 0; lane < plan.lanes.size(); ++lane)
      for (size_t i = 0; i < plan.lanes[lane].collectives.size(); ++i)
        lane_of_[plan.lanes[lane].collectives[i]] = Task{lane + 1, i};
    for (const Edge& edge : plan.edges) before_[edge.to].push_back(edge.from);
    for (const Task& task : plan.load.before) before_[task].push_back(host_);
    before_[host_] = plan.load.after;
  }

  std::vector<TaskRun> run(int64_t steps, bool drains) && {
    for (step_ = 0; step_ < steps; ++step_) {
      micro_batch_ = 0;
      const auto parts = ir::parts_of_step(plan_.graph.micro_batches);
      for (size_t p = 0; p < parts.size(); ++p) {
        const bool is_micro_batch = parts[p] != ir::Part::Head && parts[p] != ir::Part::Tail;
        if (is_micro_batch) {
          micro_batch_ = static_cast<int64_t>(p) - 1;
          add({.kind = TaskRun::LoadBatch}, host_);
        }
        run_part(parts[p]);
      }
      if (!drains && step_ + 1 < steps) continue;
      TaskRun end{.kind = TaskRun::EndStep, .lane = host_.lane};
      for (size_t i = 0; i < runs_.size(); ++i) end.after.push_back(i);
      end_ = runs_.size();
      add(std::move(end));
    }
    return std::move(runs_);
  }

 private:
  void run_part(ir::Part part) {
    adds_ = part != ir::Part::Head && part != ir::Part::Tail && plan_.graph.micro_batches > 1 && ir::beta_in(part) == 1;
    int last = -1;
    auto loop = loops_.begin();
    for (size_t i = 0; i < plan_.graph.ops().size(); ++i) {
      const Op& op = *plan_.graph.ops()[i];
      if (loop != loops_.end() && i == loop->last) {
        last = -1;
        if (ir::runs_in(op, part) && ++trip_ < ir::most_trips(*loop->begin)) {
          i = loop->first;
          continue;
        }
        ++loop;
        loop_.reset();
        trip_ = 0;
      }
      if (!ir::runs_in(op, part)) continue;
      if (ir::is_loop(op) || op.is("end")) {
        add({.kind = ir::is_loop(op) ? TaskRun::Loop : TaskRun::EndLoop, .ops = {&op}},
            {0, static_cast<size_t>(kernels_.of[i])});
        if (ir::is_loop(op)) loop_ = runs_.size() - 1;
      } else if (ir::is_collective(op)) {
        add({.kind = TaskRun::Collective, .ops = {&op}}, lane_of_[&op]);
      } else if (kernels_.of[i] >= 0 && kernels_.of[i] != last) {
        last = kernels_.of[i];
        add({.kind = TaskRun::Kernel, .ops = kernels_.ops[static_cast<size_t>(last)]}, {0, static_cast<size_t>(last)});
      }
    }
  }

  void add(TaskRun run, const Task& task) {
    run.lane = task.lane;
    if (const auto found = before_.find(task); found != before_.end())
      for (const Task& from : found->second)
        if (const auto latest = latest_.find(from); latest != latest_.end()) run.after.push_back(latest->second);
    if (end_) run.after.push_back(*end_);
    if (const auto latest = latest_.find(task); latest != latest_.end()) run.before = latest->second;
    latest_[task] = runs_.size();
    add(std::move(run));
  }
  void add(TaskRun run) {
    run.loop = loop_;
    run.trip = trip_;
    run.step = step_;
    run.micro_batch = micro_batch_;
    run.adds = adds_;
    runs_.push_back(std::move(run));
  }

  const StepPlan& plan_;
  const cost::Kernels kernels_;
  const Task host_;                           // it writes the batch
  ir::OpTable<Task> lane_of_;                 // of collectives
  std::map<Task, std::vector<Task>> before_;  // the edges, by their ends
  std::map<Task, size_t> latest_;             // run of each task so far
  std::vector<TaskRun> runs_;
  std::optional<size_t> end_;  // the latest end of a step
  const std::vector<ir::Loop> loops_;
  std::optional<size_t> loop_;  // whose body is being written out
  int64_t step_ = 0, micro_batch_ = 0, trip_ = 0;
  bool adds_ = false;
};

}  // namespace

std::vector<TaskRun> write_out(const StepPlan& plan, int64_t steps, bool drains) {
  return Writer(plan).run(steps, drains);
}

}  // namespace sfsdp::plan::machine
