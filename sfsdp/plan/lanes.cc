// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/lanes.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/cost/kernels.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::plan {
namespace {

using ir::Graph, ir::Op, ir::Section;

constexpr int64_t kMicroBatches = 3;  // that are told apart

// By lane, how many of its runs are known to be over.
using Clock = std::vector<int64_t>;

void advance(Clock& clock, const Clock& other) {
  for (size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

struct Run {
  size_t number = 0;  // of its task
  Clock clock;        // once it is over
};

// Walks the program and notes an edge wherever it waits for what the lane of a task does not know to be over.
class EdgeMaker {
 public:
  explicit EdgeMaker(size_t lanes) : known_(lanes, Clock(lanes)), runs_(lanes), program_(lanes) {}

  void visit(const Action& action) {
    const size_t lane = action.task.lane;
    if (action.kind == Action::Wait) {
      program_[lane] = std::max(program_[lane], latest_.at(action.task));
      return;
    }
    Clock& known = known_[lane];
    std::vector<const Run*> needed(known_.size());
    for (size_t other = 0; other < known_.size(); ++other)
      if (other != lane && known[other] < program_[other])
        needed[other] = &runs_[other][static_cast<size_t>(program_[other]) - 1];
    for (size_t other = 0; other < known_.size(); ++other) {
      if (!needed[other]) continue;
      const bool implied = std::ranges::any_of(
          needed, [&](const Run* run) { return run && run != needed[other] && run->clock[other] >= program_[other]; });
      if (!implied) edges_.insert({{other, needed[other]->number}, action.task});
    }
    for (const Run* run : needed)
      if (run) advance(known, run->clock);
    known[lane] = std::ssize(runs_[lane]) + 1;
    runs_[lane].push_back({action.task.number, known});
    latest_[action.task] = known[lane];
    if (action.kind == Action::Run) advance(program_, known);
  }

  std::vector<Edge> edges() const { return {edges_.begin(), edges_.end()}; }

 private:
  std::vector<Clock> known_;            // by lane, after its latest run
  std::vector<std::vector<Run>> runs_;  // by lane
  Clock program_;                       // what the program has run on the compute lane, and waited for on others
  std::map<Task, int64_t> latest_;
  std::set<Edge> edges_;
};

}  // namespace

std::vector<CommLane> communicators(const Graph& graph) {
  std::vector<CommLane> lanes;
  for (const auto& op : graph.ops()) {
    if (!ir::is_collective(*op)) continue;
    auto axes = ir::axes_of(*op).value_or(std::vector<std::string>{});
    auto lane = std::ranges::find(lanes, axes, &CommLane::axes);
    if (lane == lanes.end()) lane = lanes.insert(lane, {.axes = std::move(axes)});
    lane->collectives.push_back(op.get());
  }
  return lanes;
}

std::string name_of(const CommLane& lane) {
  return concat(lane.axes.empty() ? "none" : join(lane.axes, ","), '/', lane.channel);
}

std::vector<Action> program_of(const Graph& graph, const std::vector<CommLane>& lanes, int64_t steps) {
  const cost::Kernels kernels = cost::kernels_of(graph);
  std::unordered_map<const Op*, Task> task_of;
  for (size_t lane = 0; lane < lanes.size(); ++lane)
    for (size_t i = 0; i < lanes[lane].collectives.size(); ++i) task_of[lanes[lane].collectives[i]] = {lane + 1, i};
  const auto run = [&](auto&& is_part, std::vector<Action>& out) {
    int last = -1;
    for (size_t i = 0; i < graph.ops().size(); ++i) {
      const Op& op = *graph.ops()[i];
      if (!is_part(op)) continue;
      const auto at = static_cast<int64_t>(i);
      if (ir::is_collective(op)) {
        out.push_back({Action::Start, task_of.at(&op), at});
        if (!ir::is_start(op)) out.push_back({Action::Wait, task_of.at(&op), at});
      } else if (ir::is_wait(op)) {
        out.push_back({Action::Wait, task_of.at(op.operands[0]->producer()), at});
      } else if (kernels.of[i] >= 0 && kernels.of[i] != last) {
        last = kernels.of[i];
        out.push_back({Action::Run, {0, static_cast<size_t>(last)}, at});
      }
    }
  };
  const auto is_head = [](const Op& op) { return op.section == Section::Init; };
  const auto is_body = [](const Op& op) { return ir::is_repeated(op); };
  const auto is_last = [](const Op& op) { return ir::is_repeated(op.section); };
  const auto is_tail = [&](const Op& op) { return !is_head(op) && !is_last(op); };
  std::vector<Action> program;
  for (int64_t step = 0; step < steps; ++step) {
    run(is_head, program);
    for (int64_t m = 1; m < std::min(graph.micro_batches, kMicroBatches); ++m) run(is_body, program);
    run(is_last, program);
    run(is_tail, program);
  }
  return program;
}

std::vector<Edge> make_edges(const Graph& graph, const std::vector<CommLane>& lanes) {
  EdgeMaker maker(lanes.size() + 1);
  for (const Action& action : program_of(graph, lanes, 2)) maker.visit(action);
  return maker.edges();
}

}  // namespace sfsdp::plan
