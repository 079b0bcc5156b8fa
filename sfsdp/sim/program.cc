// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/sim/program.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
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

double bytes_of(const Op& op) {
  return static_cast<double>(std::max(op.result()->type().bytes(), op.operands[0]->type().bytes()));
}

// Whether micro-batches repeat it.
bool is_in_loop(Part part) { return part == Part::First || part == Part::Middle || part == Part::Last; }

bool is_gathered_once(const Op& op) {
  return part_of(op.section) == Part::Head && ir::collective_kind(op) == "all_gather";
}

// Which collectives hold the compute lane where they start, and what stands for those that ZeRO 1 and 2 run.
class Rules {
 public:
  Rules(const Graph& graph, cost::Execution execution, StepGathers gathers, Reductions reductions)
      : all_block_(execution == cost::Execution::Reference), gathers_(gathers), reductions_(reductions) {
    const auto once = [](const auto& op) { return is_gathered_once(*op); };
    const bool dealt = gathers == StepGathers::BroadcastUpdate || gathers == StepGathers::BroadcastForward;
    broadcasts_ = dealt && std::ranges::any_of(graph.ops(), once);
  }

  bool blocks(const Op& start) const {
    if (all_block_) return true;
    if (part_of(start.section) == Part::Head)
      return gathers_ == StepGathers::Update || gathers_ == StepGathers::BroadcastUpdate;
    const bool reduces = start.section == ir::Section::Bwd && ir::collective_kind(start) != "all_gather";
    return reduces && reductions_ == Reductions::Block;
  }

  std::string kind_of(const Op& op) const {
    const std::string_view kind = ir::collective_kind(op);
    if (broadcasts_ && is_gathered_once(op)) return "broadcast";
    if (broadcasts_ && kind == "reduce_scatter") return "all_reduce";
    return std::string(kind);
  }

 private:
  const bool all_block_;
  const StepGathers gathers_;
  const Reductions reductions_;
  bool broadcasts_ = false;  // there are gathers that run once per step, and broadcasts stand for them
};

// Elements of each parameter that a gather brings, its flat shard's members or what was packed for it.
std::vector<int64_t> parameters_in(const Op& gather) {
  const Op* from = gather.operands[0]->producer();
  while (from->is("cast", "pad") || ir::aliased_operand(*from) >= 0) from = from->operands[0]->producer();
  if (const auto* numels = from->find_attr<std::vector<int64_t>>("numels"); numels && from->is("param")) return *numels;
  if (!from->is("pack")) return {1};
  std::vector<int64_t> numels;
  for (const ir::Value* packed : from->operands) numels.push_back(packed->type().numel());
  return numels;
}

// Owners broadcast parameters one by one.
cost::CollectiveCost cost_of(const Op& op, const std::string& kind, double bytes, cost::GroupShape group,
                             const cost::Machine& machine) {
  if (kind != "broadcast") return cost::collective_cost(kind, bytes, group, machine);
  const std::vector<int64_t> numels = parameters_in(op);
  const auto all = static_cast<double>(std::max<int64_t>(std::reduce(numels.begin(), numels.end()), 1));
  cost::CollectiveCost sum;
  for (const int64_t numel : numels) {
    const cost::CollectiveCost one =
        cost::collective_cost("broadcast", bytes * static_cast<double>(numel) / all, group, machine);
    sum.latency += one.latency;
    sum.node += one.node;
    sum.network += one.network;
  }
  return sum;
}

// Which run of a collective a task waits for.
struct Run {
  size_t collective = 0;
  bool previous = false;  // that of the micro-batch before
  bool operator<(const Run& other) const {
    return std::tie(collective, previous) < std::tie(other.collective, other.previous);
  }
};

// What must be over before a kernel or a collective begins, as the edges say.
struct Waits {
  using Ends = std::unordered_map<size_t, std::vector<size_t>>;
  Ends collectives_before_kernel, kernels_before_collective, collectives_before_collective;

  static const std::vector<size_t>& of(const Ends& ends, size_t number) {
    static const std::vector<size_t> kNone;
    const auto found = ends.find(number);
    return found == ends.end() ? kNone : found->second;
  }
};

// Makes the program in three steps: kernels and collectives in the graph's order; which of them wait for which; what the
// compute lane does in each part, kernel by kernel, with the starts and waits between two.
class Maker {
 public:
  Maker(const Graph& graph, const cost::Machine& machine, Rules rules, cost::KernelTable kernels)
      : graph_(graph), machine_(machine), rules_(rules) {
    out_.kernels = std::move(kernels);
    out_.kernel_position.assign(out_.kernels.kernels.size(), -1);
  }

  RankProgram make(const std::vector<plan::Edge>* edges) {
    read_communicators();
    for (size_t i = 0; i < graph_.ops().size(); ++i) read_op(*graph_.ops()[i], static_cast<int64_t>(i));
    read_edges(edges);
    for (size_t p = 0; p < kParts; ++p) write_part(static_cast<Part>(p));
    return std::move(out_);
  }

 private:
  // ---- kernels and collectives

  void read_communicators() {
    lanes_ = plan::communicators(graph_);
    for (const plan::CommLane& lane : lanes_) {
      out_.communicators.push_back(lane.axes);
      out_.groups.push_back(shape_of(graph_.mesh, lane.axes));
      for (auto& turns : out_.turns) turns.push_back(0);
    }
  }

  void read_op(const Op& op, int64_t position) {
    if (ir::is_collective(op)) add_collective(op, position);
    if (ir::is_wait(op)) wait_position_.try_emplace(op.operands[0]->producer(), position);
    const int kernel = out_.kernels.kernel_of[static_cast<size_t>(position)];
    if (kernel >= 0 && out_.kernel_position[static_cast<size_t>(kernel)] < 0)
      add_kernel(static_cast<size_t>(kernel), op, position);
  }

  // A kernel runs where its first op stands. That of a wait is the copy out of what was gathered.
  void add_kernel(size_t kernel, const Op& first, int64_t position) {
    out_.kernel_position[kernel] = position;
    if (ir::is_wait(first))
      waits_.collectives_before_kernel[kernel].push_back(collective_of_.at(first.operands[0]->producer()));
    for (size_t p = 0; p < kParts; ++p)
      if (ir::runs_in(first, static_cast<Part>(p))) kernels_[p].push_back(kernel);
  }

  void add_collective(const Op& op, int64_t position) {
    const auto axes = ir::axes_of(op).value_or(std::vector<std::string>{});
    Collective c;
    c.op = &op;
    c.position = position;
    c.part = part_of(op.section);
    c.kind = rules_.kind_of(op);
    c.bytes = bytes_of(op);
    c.communicator = static_cast<size_t>(std::ranges::find(out_.communicators, axes) - out_.communicators.begin());
    const cost::GroupShape group = out_.groups[c.communicator];
    c.slowdown = cost::overlap_slowdown(group, machine_);
    c.cost = cost_of(op, c.kind, c.bytes, group, machine_);
    for (size_t p = 0; p < kParts; ++p) {
      const auto part = static_cast<Part>(p);
      if (!ir::runs_in(op, part)) continue;
      const bool early = part == Part::First || part == Part::Middle;
      (early ? c.early_turn : c.turn) = out_.turns[p][c.communicator]++;
    }
    collective_of_.emplace(&op, out_.collectives.size());
    out_.collectives.push_back(std::move(c));
  }

  // ---- what waits for what

  // A plan's edges do not hold where collectives block: edges of the graph's order do.
  void read_edges(const std::vector<plan::Edge>* edges) {
    const std::vector<int> priced = priced_kernels();
    const auto blocks = [&](const Op& op) { return rules_.blocks(op); };
    if (edges && std::ranges::none_of(out_.collectives, [&](const Collective& c) { return blocks(*c.op); })) {
      for (const plan::Edge& edge : *edges) read_edge(edge, priced);
      return;
    }
    for (const plan::Edge& edge : plan::make_edges(graph_, lanes_, blocks)) read_edge(edge, priced);
  }

  // By number of a kernel in the graph, as edges name it: its number in out_.kernels, which also has copies.
  std::vector<int> priced_kernels() const {
    const cost::Kernels kernels = cost::kernels_of(graph_);
    std::vector<int> priced(kernels.ops.size(), -1);
    for (size_t i = 0; i < graph_.ops().size(); ++i)
      if (const int number = kernels.of[i]; number >= 0 && priced[static_cast<size_t>(number)] < 0)
        priced[static_cast<size_t>(number)] = out_.kernels.kernel_of[i];
    return priced;
  }

  void read_edge(const plan::Edge& edge, const std::vector<int>& priced) {
    const auto kernel = [&](const plan::Task& task) { return static_cast<size_t>(priced.at(task.number)); };
    const auto collective = [&](const plan::Task& task) {
      return collective_of_.at(lanes_.at(task.lane - 1).collectives.at(task.number));
    };
    if (edge.to.lane == 0)
      waits_.collectives_before_kernel[kernel(edge.to)].push_back(collective(edge.from));
    else if (edge.from.lane == 0)
      waits_.kernels_before_collective[collective(edge.to)].push_back(kernel(edge.from));
    else
      waits_.collectives_before_collective[collective(edge.to)].push_back(collective(edge.from));
  }

  // The latest run of a collective that was started before a task of `part` at `position`; nullopt: that of the step
  // before, which is over.
  std::optional<Run> latest_run(size_t collective, Part part, int64_t position) const {
    const Collective& c = out_.collectives[collective];
    if (is_in_loop(c.part) && is_in_loop(part)) {
      if (c.position < position && ir::runs_in(*c.op, part)) return Run{collective, false};
      if (ir::is_repeated(*c.op)) return Run{collective, true};
      return std::nullopt;  // the last micro-batch alone runs it
    }
    const bool comes_later = c.part > part || (c.part == part && c.position > position);
    return comes_later ? std::nullopt : std::optional<Run>({collective, false});
  }

  // ---- what the compute lane does

  void write_part(Part part) {
    const std::vector<size_t>& kernels = kernels_[static_cast<size_t>(part)];
    tasks_ = &out_.tasks[static_cast<size_t>(part)];
    waited_.clear();
    const auto starts = starts_of(part);
    auto start = starts.begin();
    for (size_t i = 0; i <= kernels.size(); ++i) {
      const std::vector<Run> runs = i < kernels.size() ? runs_before(kernels[i], part) : std::vector<Run>();
      for (; start != starts.end() && start->first == i; ++start) write_start(start->second, part, runs);
      for (const Run& run : runs) write_wait(run);
      if (i < kernels.size()) write_kernel(kernels[i]);
    }
    if (part == Part::Tail) wait_for_the_rest();
  }

  // The collectives of a part in the order in which they start, each with how many kernels of the part come before it: as
  // soon as its lane and its edges let it.
  std::vector<std::pair<size_t, size_t>> starts_of(Part part) const {
    std::unordered_map<size_t, size_t> kernels_up_to;  // a kernel of the part, and with it
    const auto& kernels = kernels_[static_cast<size_t>(part)];
    for (size_t i = 0; i < kernels.size(); ++i) kernels_up_to[kernels[i]] = i + 1;
    std::vector<size_t> on_lane(lanes_.size());
    std::unordered_map<size_t, size_t> started_after;
    std::vector<std::pair<size_t, size_t>> starts;
    for (size_t n = 0; n < out_.collectives.size(); ++n) {
      const Collective& c = out_.collectives[n];
      if (!ir::runs_in(*c.op, part)) continue;
      size_t& after = on_lane[c.communicator];
      for (const size_t kernel : Waits::of(waits_.kernels_before_collective, n))
        if (const auto found = kernels_up_to.find(kernel);
            found != kernels_up_to.end() && out_.kernel_position[kernel] < c.position)
          after = std::max(after, found->second);
      for (const size_t other : Waits::of(waits_.collectives_before_collective, n))
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
    for (const size_t c : Waits::of(waits_.collectives_before_kernel, kernel))
      if (const auto run = latest_run(c, part, out_.kernel_position[kernel])) runs.push_back(*run);
    std::ranges::sort(runs, {},
                      [&](const Run& run) { return std::pair(!run.previous, wait_position(run.collective)); });
    return runs;
  }

  // First what is waited for in any case and is over before it: what stands before it on its own lane; and what has an edge
  // to it.
  //   runs: that the next kernel waits for
  void write_start(size_t collective, Part part, const std::vector<Run>& runs) {
    const Collective& c = out_.collectives[collective];
    for (const Run& run : runs)
      if (out_.collectives[run.collective].communicator == c.communicator &&
          (run.previous || run.collective < collective))
        write_wait(run);
    for (const size_t other : Waits::of(waits_.collectives_before_collective, collective))
      if (const auto run = latest_run(other, part, c.position)) write_wait(*run);
    tasks_->push_back({.kind = Task::Start, .collective = collective, .position = c.position});
  }

  void write_wait(const Run& run) {
    if (!waited_.insert(run).second) return;
    if (!run.previous) ever_waited_.insert(run.collective);
    tasks_->push_back({.kind = Task::Wait,
                       .collective = run.collective,
                       .position = wait_position(run.collective),
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

  int64_t wait_position(size_t collective) const {
    const Collective& c = out_.collectives[collective];
    const auto found = wait_position_.find(c.op);
    return found == wait_position_.end() || rules_.blocks(*c.op) ? c.position : found->second;
  }

  const Graph& graph_;
  const cost::Machine& machine_;
  const Rules rules_;
  RankProgram out_;
  std::vector<plan::CommLane> lanes_;
  std::array<std::vector<size_t>, kParts> kernels_;       // as they run
  std::unordered_map<const Op*, size_t> collective_of_;   // by its op
  std::unordered_map<const Op*, int64_t> wait_position_;  // of a start
  Waits waits_;
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

RankProgram make_program(const Graph& graph, const cost::Machine& machine, cost::Execution execution,
                         cost::System system, StepGathers gathers, const cost::Composites& composites,
                         const std::vector<plan::Edge>* edges, Reductions reductions) {
  if (const auto loops = ir::loops_of(graph); !loops.empty())
    throw UserError(concat("the simulation cannot say how often ", ir::name_of(*loops[0].begin), " runs its body",
                           "\n  expected a graph without loop and when"));
  for (const auto& op : graph.ops())
    if (ir::is_by_rank(*op))
      throw UserError(concat("the simulation runs one program on all ranks, and the graph has ", ir::name_of(*op),
                             "\n  expected a graph without counted=, row_counts= and affine offsets"));
  return Maker(graph, machine, Rules(graph, execution, gathers, reductions),
               cost::price_kernels(graph, machine, execution, system, composites))
      .make(edges);
}

}  // namespace sfsdp::sim
