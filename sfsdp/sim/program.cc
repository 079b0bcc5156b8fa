// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/sim/program.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/cost/kernels.h"
#include "sfsdp/ir/by_rank.h"
#include "sfsdp/ir/loops.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::sim {
namespace {

using ir::Graph, ir::Op;

// Whether micro-batches repeat it.
bool is_in_loop(Part part) { return part == Part::First || part == Part::Middle || part == Part::Last; }

// Which run of a collective a task waits for.
struct Run {
  size_t collective = 0;
  bool previous = false;  // that of the micro-batch before
  bool operator<(const Run& other) const {
    return std::tie(collective, previous) < std::tie(other.collective, other.previous);
  }
};

// What one rank runs, in the graph's order.
struct Step {
  std::vector<plan::CommLane> lanes;
  std::array<std::vector<size_t>, kParts> kernels;       // as they run
  std::unordered_map<const Op*, size_t> collective_of;   // by its op
  std::unordered_map<const Op*, int64_t> wait_position;  // of a start
  RankProgram program;                                   // without order and tasks
};

void add_collective(Step& step, const Op& op, int64_t position, const CollectiveRules& rules,
                    const cost::Machine& machine) {
  RankProgram& out = step.program;
  const auto axes = ir::axes_of(op).value_or(std::vector<std::string>{});
  Collective c;
  c.op = &op;
  c.position = position;
  c.part = part_of(op.section);
  c.kind = rules.kind_of(op);
  c.bytes = static_cast<double>(ir::collective_bytes(op));
  c.communicator = static_cast<size_t>(std::ranges::find(out.communicators, axes) - out.communicators.begin());
  const cost::GroupShape group = out.groups[c.communicator];
  c.slowdown = cost::overlap_slowdown(group, machine);
  c.cost = cost_of(op, c.kind, c.bytes, group, machine);
  for (size_t p = 0; p < kParts; ++p) {
    const auto part = static_cast<Part>(p);
    if (!ir::runs_in(op, part)) continue;
    const bool early = part == Part::First || part == Part::Middle;
    (early ? c.early_turn : c.turn) = out.turns[p][c.communicator]++;
  }
  step.collective_of.emplace(&op, out.collectives.size());
  out.collectives.push_back(std::move(c));
}

Step read_step(const Graph& graph, const cost::Machine& machine, const CollectiveRules& rules,
               cost::KernelTable kernels) {
  Step step;
  step.lanes = plan::communicators(graph);
  RankProgram& out = step.program;
  for (const plan::CommLane& lane : step.lanes) {
    out.communicators.push_back(lane.axes);
    out.groups.push_back(shape_of(graph.mesh, lane.axes));
    for (auto& turns : out.turns) turns.push_back(0);
  }
  out.kernels = std::move(kernels);
  out.kernel_position.assign(out.kernels.kernels.size(), -1);
  const std::vector<ir::Loop> loops = ir::loops_of(graph);
  for (size_t i = 0; i < graph.ops().size(); ++i) {
    const Op& op = *graph.ops()[i];
    const auto position = static_cast<int64_t>(i);
    if (ir::loop_around(loops, i)) continue;  // no trip: where rows are even, the first round has room for all
    if (ir::is_collective(op)) add_collective(step, op, position, rules, machine);
    if (ir::is_wait(op)) step.wait_position.try_emplace(op.operands[0]->producer(), position);
    const int kernel = out.kernels.kernel_of[i];  // runs where its first op stands
    if (kernel < 0 || out.kernel_position[static_cast<size_t>(kernel)] >= 0) continue;
    out.kernel_position[static_cast<size_t>(kernel)] = position;
    for (size_t p = 0; p < kParts; ++p)
      if (ir::runs_in(op, static_cast<Part>(p))) step.kernels[p].push_back(static_cast<size_t>(kernel));
  }
  return step;
}

// What waits for what, as the edges and the places of tasks in the graph say.
class TaskOrder {
 public:
  TaskOrder(const Graph& graph, const CollectiveRules& rules, const Step& step, const std::vector<plan::Edge>* edges)
      : graph_(graph),
        rules_(rules),
        step_(step),
        program_(step.program),
        bodies_(plan::loops_of_tasks(graph, step.lanes)) {
    // The first kernel of a wait is the copy out of what was gathered.
    for (size_t kernel = 0; kernel < program_.kernel_position.size(); ++kernel)
      if (const int64_t position = program_.kernel_position[kernel]; position >= 0)
        if (const Op& first = *graph.ops()[static_cast<size_t>(position)]; ir::is_wait(first))
          before_kernel_[kernel].push_back(step.collective_of.at(first.operands[0]->producer()));
    read_edges(edges);
  }

  // The collectives of a part in the order in which they start, each with how many kernels of the part come before it: as
  // soon as its lane and its edges let it.
  std::vector<std::pair<size_t, size_t>> starts_of(Part part) const {
    std::unordered_map<size_t, size_t> kernels_up_to;  // a kernel of the part, and with it
    const auto& kernels = step_.kernels[static_cast<size_t>(part)];
    for (size_t i = 0; i < kernels.size(); ++i) kernels_up_to[kernels[i]] = i + 1;
    std::vector<size_t> on_lane(step_.lanes.size());
    std::unordered_map<size_t, size_t> started_after;
    std::vector<std::pair<size_t, size_t>> starts;
    for (size_t n = 0; n < program_.collectives.size(); ++n) {
      const Collective& c = program_.collectives[n];
      if (!ir::runs_in(*c.op, part)) continue;
      size_t& after = on_lane[c.communicator];
      for (const size_t kernel : ends_at(kernels_before_, n))
        if (const auto found = kernels_up_to.find(kernel);
            found != kernels_up_to.end() && program_.kernel_position[kernel] < c.position)
          after = std::max(after, found->second);
      for (const size_t other : ends_at(collectives_before_, n))
        if (const auto found = started_after.find(other); found != started_after.end())
          after = std::max(after, found->second);
      started_after[n] = after;
      starts.emplace_back(after, n);
    }
    std::ranges::stable_sort(starts, {}, &std::pair<size_t, size_t>::first);
    return starts;
  }

  // What a kernel waits for, in the order of the graph's waits.
  std::vector<Run> runs_before(size_t kernel, Part part) const {
    std::vector<Run> runs;
    for (const size_t c : ends_at(before_kernel_, kernel))
      if (const auto run = latest_run(c, part, program_.kernel_position[kernel])) runs.push_back(*run);
    std::ranges::sort(runs, {},
                      [&](const Run& run) { return std::pair(!run.previous, wait_position(run.collective)); });
    return runs;
  }

  // What a collective waits for on other lanes.
  std::vector<Run> runs_before_start(size_t collective, Part part) const {
    std::vector<Run> runs;
    for (const size_t other : ends_at(collectives_before_, collective))
      if (const auto run = latest_run(other, part, program_.collectives[collective].position)) runs.push_back(*run);
    return runs;
  }

  int64_t wait_position(size_t collective) const {
    const Collective& c = program_.collectives[collective];
    const auto found = step_.wait_position.find(c.op);
    return found == step_.wait_position.end() || rules_.blocks(*c.op) ? c.position : found->second;
  }

 private:
  using Ends = std::unordered_map<size_t, std::vector<size_t>>;  // what must be over before the task of a number begins

  static std::span<const size_t> ends_at(const Ends& ends, size_t number) {
    const auto found = ends.find(number);
    return found == ends.end() ? std::span<const size_t>() : found->second;
  }

  // A plan's edges do not hold where collectives block: edges of the graph's order do.
  void read_edges(const std::vector<plan::Edge>* edges) {
    const std::vector<int> priced = priced_kernels();
    const auto blocks = [&](const Op& op) { return rules_.blocks(op); };
    if (edges && std::ranges::none_of(program_.collectives, [&](const Collective& c) { return blocks(*c.op); })) {
      for (const plan::Edge& edge : *edges) read_edge(edge, priced);
      return;
    }
    for (const plan::Edge& edge : plan::make_edges(graph_, step_.lanes, blocks)) read_edge(edge, priced);
  }

  // By number of a kernel in the graph, as edges name it: its number in program_.kernels, which also has copies.
  std::vector<int> priced_kernels() const {
    const cost::Kernels kernels = cost::kernels_of(graph_);
    std::vector<int> priced(kernels.ops.size(), -1);
    for (size_t i = 0; i < graph_.ops().size(); ++i)
      if (const int number = kernels.of[i]; number >= 0 && priced[static_cast<size_t>(number)] < 0)
        priced[static_cast<size_t>(number)] = program_.kernels.kernel_of[i];
    return priced;
  }

  void read_edge(const plan::Edge& edge, const std::vector<int>& priced) {
    if (bodies_.contains(edge.from) || bodies_.contains(edge.to)) return;  // they make no trip
    const auto kernel = [&](const plan::Task& task) { return static_cast<size_t>(priced.at(task.number)); };
    const auto collective = [&](const plan::Task& task) {
      return step_.collective_of.at(step_.lanes.at(task.lane - 1).collectives.at(task.number));
    };
    if (edge.to.lane == 0)
      before_kernel_[kernel(edge.to)].push_back(collective(edge.from));
    else if (edge.from.lane == 0)
      kernels_before_[collective(edge.to)].push_back(kernel(edge.from));
    else
      collectives_before_[collective(edge.to)].push_back(collective(edge.from));
  }

  // The latest run of a collective that was started before a task of `part` at `position`; nullopt: that of the step
  // before, which is over.
  std::optional<Run> latest_run(size_t collective, Part part, int64_t position) const {
    const Collective& c = program_.collectives[collective];
    if (is_in_loop(c.part) && is_in_loop(part)) {
      if (c.position < position && ir::runs_in(*c.op, part)) return Run{collective, false};
      if (ir::is_repeated(*c.op)) return Run{collective, true};
      return std::nullopt;  // the last micro-batch alone runs it
    }
    const bool comes_later = c.part > part || (c.part == part && c.position > position);
    return comes_later ? std::nullopt : std::optional<Run>({collective, false});
  }

  const Graph& graph_;
  const CollectiveRules& rules_;
  const Step& step_;
  const RankProgram& program_;
  const std::map<plan::Task, const Op*> bodies_;
  Ends before_kernel_, kernels_before_, collectives_before_;  // collectives, by kernel; both by collective
};

// Writes what the compute lane does in each part, kernel by kernel, with the starts and waits between two.
class Writer {
 public:
  Writer(Step& step, const TaskOrder& order) : step_(step), order_(order), out_(step.program) {}

  void write_part(Part part) {
    const std::vector<size_t>& kernels = step_.kernels[static_cast<size_t>(part)];
    tasks_ = &out_.tasks[static_cast<size_t>(part)];
    waited_.clear();
    const auto starts = order_.starts_of(part);
    auto start = starts.begin();
    for (size_t i = 0; i <= kernels.size(); ++i) {
      const std::vector<Run> runs = i < kernels.size() ? order_.runs_before(kernels[i], part) : std::vector<Run>();
      for (; start != starts.end() && start->first == i; ++start) write_start(start->second, part, runs);
      for (const Run& run : runs) write_wait(run);
      if (i < kernels.size()) write_kernel(kernels[i]);
    }
    if (part == Part::Tail) wait_for_the_rest();
  }

 private:
  // First what is waited for in any case and is over before it: what stands before it on its own lane; and what has an edge
  // to it.
  //   runs: that the next kernel waits for
  void write_start(size_t collective, Part part, const std::vector<Run>& runs) {
    const Collective& c = out_.collectives[collective];
    for (const Run& run : runs)
      if (out_.collectives[run.collective].communicator == c.communicator &&
          (run.previous || run.collective < collective))
        write_wait(run);
    for (const Run& run : order_.runs_before_start(collective, part)) write_wait(run);
    tasks_->push_back({.kind = Task::Start, .collective = collective, .position = c.position});
  }

  void write_wait(const Run& run) {
    if (!waited_.insert(run).second) return;
    if (!run.previous) ever_waited_.insert(run.collective);
    tasks_->push_back({.kind = Task::Wait,
                       .collective = run.collective,
                       .position = order_.wait_position(run.collective),
                       .previous = run.previous});
  }

  void write_kernel(size_t kernel) {
    if (tasks_->empty() || tasks_->back().kind != Task::Compute)
      tasks_->push_back({.kind = Task::Compute, .first = out_.order.size()});
    out_.order.push_back(kernel);
    ++tasks_->back().count;
  }

  // The step ends when all is over.
  void wait_for_the_rest() {
    for (size_t n = 0; n < out_.collectives.size(); ++n)
      if (!ever_waited_.contains(n)) write_wait({n, false});
  }

  const Step& step_;
  const TaskOrder& order_;
  RankProgram& out_;
  std::vector<Task>* tasks_ = nullptr;  // of the part that is written
  std::set<Run> waited_;                // in that part
  std::set<size_t> ever_waited_;        // collectives, in any
};

}  // namespace

cost::GroupShape shape_of(const std::vector<ir::MeshAxis>& mesh, const std::vector<std::string>& axes) {
  cost::GroupShape shape;
  int64_t stride = 1;
  bool inner = true;
  for (size_t i = mesh.size(); i-- > 0;) {  // inner axes first
    const ir::MeshAxis& axis = mesh[i];
    if (std::ranges::find(axes, axis.name) != axes.end()) {
      shape.size *= axis.size;
      if (inner) shape.stride = stride;
      inner = false;
    }
    stride *= axis.size;
  }
  return shape;
}

namespace {

// Loops make no trip where choices of experts are even and the first round has room for as many rows. Nobody knows of others.
void check_trips(const Graph& graph) {
  for (const ir::Loop& loop : ir::loops_of(graph)) {
    const Op& number = *loop.begin->operands[0]->producer();
    if (!number.is("further_rounds"))
      throw UserError(concat("the simulation cannot say how often ", ir::name_of(*loop.begin), " runs its body",
                             "\n  expected a graph without loop and when, but for rounds of experts' rows"));
    const int64_t room = number.attr<int64_t>("room"), ranks = ir::axis_size(graph, *ir::axes_of(number)).value_or(1);
    const auto exchange = std::find_if(graph.ops().begin() + static_cast<std::ptrdiff_t>(loop.first), graph.ops().end(),
                                       [](const auto& op) { return ir::collective_kind(*op) == "all_to_all_v"; });
    SFSDP_CHECK(exchange != graph.ops().end(), ir::name_of(*loop.begin), " exchanges nothing");
    const int64_t rows = ir::rows_of_groups(**exchange);
    if (room * ranks < rows)
      throw UserError(concat("the simulation takes choices of experts to be even, and ", ranks, " ranks with room for ",
                             room, " rows each need further rounds for ", rows, " all the same",
                             "\n  expected ExpertParallelOptions::capacity of 1 or more"));
  }
}

}  // namespace

RankProgram make_program(const Graph& graph, const cost::Machine& machine, cost::Execution execution,
                         cost::System system, StepGathers gathers, const cost::Composites& composites,
                         const std::vector<plan::Edge>* edges, Reductions reductions) {
  check_trips(graph);
  for (const auto& op : graph.ops())
    if (ir::is_by_rank(*op))
      throw UserError(concat("the simulation runs one program on all ranks, and the graph has ", ir::name_of(*op),
                             "\n  expected a graph without counted=, row_counts= and affine offsets"));
  const bool all_block = execution == cost::Execution::Reference || machine.inline_collectives;
  const CollectiveRules rules(graph, all_block, gathers, reductions);
  Step step = read_step(graph, machine, rules, cost::price_kernels(graph, machine, execution, system, composites));
  const TaskOrder order(graph, rules, step, edges);
  Writer writer(step, order);
  for (size_t p = 0; p < kParts; ++p) writer.write_part(static_cast<Part>(p));
  return std::move(step.program);
}

}  // namespace sfsdp::sim
