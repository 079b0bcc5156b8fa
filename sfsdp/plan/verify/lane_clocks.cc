// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/verify/lane_clocks.h"

#include <algorithm>

namespace sfsdp::plan {

LaneClocks::LaneClocks(const StepPlan& plan)
    : plan_(plan), host_(plan.lanes.size() + 1), now_(lanes(), Clock(lanes())), runs_(lanes()), latest_(lanes()) {
  for (const Edge& edge : plan.edges) before_.emplace_back(edge.to, edge.from);
  for (const Task& task : plan.load.before) before_.emplace_back(task, Task{host_, 0});
  for (const Task& task : plan.load.after) before_.emplace_back(Task{host_, 0}, task);
  std::sort(before_.begin(), before_.end());
}

std::string LaneClocks::name_of(size_t lane) const {
  return lane == host_ ? "host" : lane == 0 ? "compute" : plan::name_of(plan_.lanes[lane - 1]);
}

Run LaneClocks::begin(const Task& task) {
  Clock& clock = now_[task.lane];
  auto edge = std::lower_bound(before_.begin(), before_.end(), std::pair(task, Task()));
  for (; edge != before_.end() && edge->first == task; ++edge) {
    const Task& from = edge->second;
    const auto& latest = latest_[from.lane];
    if (from.number >= latest.size() || latest[from.number] == 0) continue;
    const Clock& other = runs_[from.lane][static_cast<size_t>(latest[from.number]) - 1];
    for (size_t i = 0; i < lanes(); ++i) clock[i] = std::max(clock[i], other[i]);
  }
  return {task.lane, std::ssize(runs_[task.lane]) + 1};
}

void LaneClocks::finish(const Task& task, const Run& run) {
  Clock& clock = now_[task.lane];
  clock[task.lane] = run.number;
  runs_[task.lane].push_back(clock);
  auto& latest = latest_[task.lane];
  if (latest.size() <= task.number) latest.resize(task.number + 1);
  latest[task.number] = run.number;
}

}  // namespace sfsdp::plan
