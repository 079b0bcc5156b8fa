// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/lanes.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/cost/kernels.h"
#include "sfsdp/ir/loops.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/part.h"
#include "sfsdp/ir/side_table.h"

namespace sfsdp::plan {
namespace {

using ir::Graph, ir::Op;

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
  explicit EdgeMaker(size_t lanes) : known_(lanes, Clock(lanes)), runs_(lanes), program_(lanes), latest_(lanes) {}

  void visit(const Action& action) {
    if (action.kind == Action::Load || action.kind == Action::Again) return;
    const size_t lane = action.task.lane;
    if (action.kind == Action::Wait) {
      program_[lane] = std::max(program_[lane], latest_[lane].at(action.task.number));
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
      if (!implied) edges_.push_back({{other, needed[other]->number}, action.task});
    }
    for (const Run* run : needed)
      if (run) advance(known, run->clock);
    known[lane] = std::ssize(runs_[lane]) + 1;
    runs_[lane].push_back({action.task.number, known});
    std::vector<int64_t>& latest = latest_[lane];
    if (latest.size() <= action.task.number) latest.resize(action.task.number + 1);
    latest[action.task.number] = known[lane];
    if (action.kind == Action::Run) advance(program_, known);
  }

  std::vector<Edge> edges() && {
    std::sort(edges_.begin(), edges_.end());
    edges_.erase(std::unique(edges_.begin(), edges_.end()), edges_.end());
    return std::move(edges_);
  }

 private:
  std::vector<Clock> known_;                  // by lane, after its latest run
  std::vector<std::vector<Run>> runs_;        // by lane
  Clock program_;                             // what the program has run on the compute lane, and waited for on others
  std::vector<std::vector<int64_t>> latest_;  // run, by lane and task
  std::vector<Edge> edges_;
};

int64_t staging_bytes(const ir::Op& op) {
  if (ir::collective_kind(op) == "all_to_all_v") return 2 * ir::collective_bytes(op);  // rows by rank, of even ones
  if (ir::collective_kind(op) != "all_to_all") return 0;
  const auto copied = [&](const ir::Value* value, const char* key) {
    const auto& dims = value->type().dims;
    const bool leads = std::all_of(dims.begin(), dims.begin() + op.attr<int64_t>(key),
                                   [](const ir::Dim& dim) { return dim.size == 1; });
    return leads ? 0 : value->type().bytes();
  };
  return copied(op.operands[0], "split") + copied(op.result(), "join");
}

}  // namespace

int64_t staging_bytes(const CommLane& lane) {
  int64_t most = 0;
  for (const ir::Op* op : lane.collectives) most = std::max(most, staging_bytes(*op));
  return most;
}

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

Actions actions_of(const Graph& graph, const std::vector<CommLane>& lanes, const std::function<bool(const Op&)>& blocks,
                   int64_t trips) {
  const auto is_over = [&](const Op& op) { return !ir::is_start(op) || (blocks && blocks(op)); };
  const cost::Kernels kernels = cost::kernels_of(graph);
  ir::OpTable<Task> task_of(graph);
  for (size_t lane = 0; lane < lanes.size(); ++lane)
    for (size_t i = 0; i < lanes[lane].collectives.size(); ++i) task_of[lanes[lane].collectives[i]] = {lane + 1, i};
  Actions actions;
  const std::vector<ir::Loop> loops = ir::loops_of(graph);
  const auto run = [&](ir::Part part) {
    std::vector<Action>& program = actions[static_cast<size_t>(part)];
    if (part != ir::Part::Head && part != ir::Part::Tail) program.push_back({Action::Load});
    int last = -1;
    auto loop = loops.begin();
    int64_t trip = 0;
    for (size_t i = 0; i < graph.ops().size(); ++i) {
      const Op& op = *graph.ops()[i];
      if (loop != loops.end() && i == loop->last) {
        if (trip + 1 < trips && ir::runs_in(op, part)) {
          program.push_back({Action::Again, {0, static_cast<size_t>(kernels.of[loop->first])}});
          ++trip;
          i = loop->first;
          last = -1;
          continue;
        }
        trip = 0;
        ++loop;
      }
      if (!ir::runs_in(op, part)) continue;
      if (ir::is_collective(op)) {
        program.push_back({Action::Start, task_of[&op]});
        if (is_over(op)) program.push_back({Action::Wait, task_of[&op]});
      } else if (ir::is_wait(op)) {
        program.push_back({Action::Wait, task_of[op.operands[0]->producer()]});
      } else if (kernels.of[i] >= 0 && kernels.of[i] != last) {
        last = kernels.of[i];
        program.push_back({Action::Run, {0, static_cast<size_t>(last)}});
      }
      if (trips == 0 && loop != loops.end() && i == loop->first) i = loop->last - 1;
    }
  };
  for (size_t part = 0; part < ir::kParts; ++part) run(static_cast<ir::Part>(part));
  return actions;
}

std::vector<Action> program_of(const Graph& graph, const std::vector<CommLane>& lanes,
                               const std::function<bool(const Op&)>& blocks, int64_t trips) {
  const Actions actions = actions_of(graph, lanes, blocks, trips);
  std::vector<Action> program;
  for (const ir::Part part : ir::parts_of_step(std::min(graph.micro_batches, kMicroBatches)))
    std::ranges::copy(actions[static_cast<size_t>(part)], std::back_inserter(program));
  return program;
}

std::map<Task, const ir::Op*> loops_of_tasks(const Graph& graph, const std::vector<CommLane>& lanes) {
  std::map<Task, const ir::Op*> tasks;
  const std::vector<ir::Loop> loops = ir::loops_of(graph);
  if (loops.empty()) return tasks;
  const cost::Kernels kernels = cost::kernels_of(graph);
  ir::OpTable<Task> task_of(graph);
  for (size_t lane = 0; lane < lanes.size(); ++lane)
    for (size_t i = 0; i < lanes[lane].collectives.size(); ++i) task_of[lanes[lane].collectives[i]] = {lane + 1, i};
  for (const ir::Loop& loop : loops)
    for (size_t i = loop.first + 1; i < loop.last; ++i) {
      const Op& op = *graph.ops()[i];
      if (ir::is_collective(op))
        tasks[task_of[&op]] = loop.begin;
      else if (kernels.of[i] >= 0)
        tasks[{0, static_cast<size_t>(kernels.of[i])}] = loop.begin;
    }
  return tasks;
}

std::vector<Edge> make_edges(const Graph& graph, const std::vector<CommLane>& lanes,
                             const std::function<bool(const Op&)>& blocks) {
  std::vector<Edge> edges;
  for (const int64_t trips : trips_to_check(graph)) {
    EdgeMaker maker(lanes.size() + 1);
    const std::vector<Action> program = program_of(graph, lanes, blocks, trips);
    for (int step = 0; step < 2; ++step)  // the second one follows a step
      for (const Action& action : program) maker.visit(action);
    const std::vector<Edge> more = std::move(maker).edges();
    std::vector<Edge> both;
    std::ranges::set_union(edges, more, std::back_inserter(both), std::less<>());
    edges = std::move(both);
  }
  return edges;
}

std::vector<int64_t> trips_to_check(const Graph& graph) {
  if (ir::loops_of(graph).empty()) return {1};
  return {0, 2};
}

HostLoad host_load(const Graph& graph, const std::vector<CommLane>& lanes) {
  const auto reads_io_itself = [](const Op* op) {
    if (ir::is_update(*op) || ir::draws(*op)) return true;  // lr and step; seed, step and micro-batch
    return std::ranges::any_of(op->operands, [](const ir::Value* operand) {
      return operand && ir::storage_of(operand)->producer()->is("input");
    });
  };
  // A loop without a trip stands for its body: its tasks read what the body reads.
  ir::OpTable<uint8_t> in_body(graph, 0), stands_for_reader(graph, 0);
  for (const ir::Loop& loop : ir::loops_of(graph))
    for (size_t i = loop.first + 1; i < loop.last; ++i) {
      const Op* op = graph.ops()[i].get();
      in_body[op] = 1;
      if (reads_io_itself(op)) stands_for_reader[loop.begin] = stands_for_reader[loop.end] = 1;
    }
  const auto reads_io = [&](const Op* op) { return stands_for_reader[op] != 0 || reads_io_itself(op); };
  HostLoad load;
  const auto add = [](std::vector<Task>& tasks, const Task& task) {
    if (std::ranges::find(tasks, task) == tasks.end()) tasks.push_back(task);
  };
  // Some tasks run in the last micro-batch alone, or after it: each part of a step has its own first and last.
  const auto note = [&](size_t lane, const std::vector<std::vector<const Op*>>& tasks) {
    for (const ir::Part part : {ir::Part::First, ir::Part::Last, ir::Part::Tail}) {
      std::vector<size_t> readers;
      for (size_t i = 0; i < tasks.size(); ++i)
        if (ir::runs_in(*tasks[i][0], part) && std::ranges::any_of(tasks[i], reads_io)) readers.push_back(i);
      if (readers.empty()) continue;
      add(load.before, {lane, readers.front()});
      add(load.after, {lane, readers.back()});
      std::erase_if(readers, [&](size_t i) { return in_body[tasks[i][0]] != 0; });
      if (readers.empty()) continue;
      add(load.before, {lane, readers.front()});
      add(load.after, {lane, readers.back()});
    }
  };
  note(0, cost::kernels_of(graph).ops);
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    std::vector<std::vector<const Op*>> tasks;
    for (const Op* op : lanes[lane].collectives) tasks.push_back({op});
    note(lane + 1, tasks);
  }
  return load;
}

}  // namespace sfsdp::plan
