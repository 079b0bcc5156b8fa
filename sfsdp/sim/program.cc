// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/sim/program.h"

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "sfsdp/cost/kernels.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::sim {
namespace {

using ir::Graph, ir::Op;

double bytes_of(const Op& op) {
  return static_cast<double>(std::max(op.result()->type().bytes(), op.operands[0]->type().bytes()));
}

class Maker {
 public:
  Maker(const Graph& graph, const cost::Machine& machine, cost::Execution execution, cost::System system,
        StepGathers gathers, const cost::Composites& composites, Reductions reductions)
      : graph_(graph),
        machine_(machine),
        blocks_(execution == cost::Execution::Reference),
        gathers_(gathers),
        reductions_(reductions),
        broadcasts_(gathers == StepGathers::Broadcast && std::ranges::any_of(graph.ops(), [](const auto& op) {
                      return part_of(op->section) == Part::Head && ir::collective_kind(*op) == "all_gather";
                    })) {
    out_.kernels = cost::price_kernels(graph, machine, execution, system, composites);
    out_.kernel_position.assign(out_.kernels.kernels.size(), -1);
  }

  // Kernels and collectives of each part, in order; which of them edges join; then what the compute lane does between two
  // kernels: starts and waits.
  RankProgram make(const std::vector<plan::Edge>* edges) {
    lanes_ = plan::communicators(graph_);
    for (const plan::CommLane& lane : lanes_) {
      out_.communicators.push_back(lane.axes);
      out_.groups.push_back(shape_of(graph_.mesh, lane.axes));
      for (auto& turns : out_.turns) turns.push_back(0);
    }
    const cost::Kernels kernels = cost::kernels_of(graph_);
    priced_.assign(kernels.ops.size(), -1);
    for (size_t i = 0; i < graph_.ops().size(); ++i) {
      read(*graph_.ops()[i], static_cast<int64_t>(i));
      if (const int number = kernels.of[i]; number >= 0 && priced_[static_cast<size_t>(number)] < 0)
        priced_[static_cast<size_t>(number)] = out_.kernels.kernel_of[i];
    }
    const auto blocks = [&](const Op& op) { return blocks_at(op); };
    const bool blocking = std::ranges::any_of(out_.collectives, [&](const Collective& c) { return blocks_at(*c.op); });
    const auto made = edges && !blocking ? std::vector<plan::Edge>() : plan::make_edges(graph_, lanes_, blocks);
    for (const plan::Edge& edge : edges && !blocking ? *edges : made) read(edge);
    for (size_t p = 0; p < kParts; ++p) write(static_cast<Part>(p));
    return std::move(out_);
  }

 private:
  struct Stop {
    size_t collective = 0;
    bool previous = false;  // its run of the micro-batch before
    bool operator<(const Stop& other) const {
      return std::tie(collective, previous) < std::tie(other.collective, other.previous);
    }
  };

  bool blocks_at(const Op& start) const {
    if (reductions_ == Reductions::Block && start.section == ir::Section::Bwd &&
        ir::collective_kind(start) != "all_gather")
      return true;
    return blocks_ || (part_of(start.section) == Part::Head && gathers_ != StepGathers::Forward);
  }

  // A fused kernel runs where its first op stands, the copy out of a gather after its wait.
  void read(const Op& op, int64_t position) {
    if (ir::is_collective(op)) start(op, position);
    if (ir::is_wait(op)) wait_position_.try_emplace(op.operands[0]->producer(), position);
    const int k = out_.kernels.kernel_of[static_cast<size_t>(position)];
    if (k < 0 || out_.kernel_position[static_cast<size_t>(k)] >= 0) return;
    out_.kernel_position[static_cast<size_t>(k)] = position;
    if (ir::is_wait(op)) waited_by_[static_cast<size_t>(k)].push_back(collective_of_.at(op.operands[0]->producer()));
    for (size_t p = 0; p < kParts; ++p)
      if (ir::runs_in(op, static_cast<Part>(p))) order_[p].push_back(static_cast<size_t>(k));
  }

  void start(const Op& op, int64_t position) {
    const auto axes = ir::axes_of(op).value_or(std::vector<std::string>{});
    Collective c;
    c.op = &op;
    c.position = position;
    c.part = part_of(op.section);
    c.kind = kind_of(op);
    c.bytes = bytes_of(op);
    c.communicator = static_cast<size_t>(std::ranges::find(out_.communicators, axes) - out_.communicators.begin());
    c.slowdown = cost::overlap_slowdown(out_.groups[c.communicator], machine_);
    c.cost = cost_of(c);
    collective_of_.emplace(&op, out_.collectives.size());
    for (size_t p = 0; p < kParts; ++p) {
      if (!ir::runs_in(op, static_cast<Part>(p))) continue;
      const bool early = static_cast<Part>(p) == Part::First || static_cast<Part>(p) == Part::Middle;
      (early ? c.early_turn : c.turn) = out_.turns[p][c.communicator]++;
    }
    out_.collectives.push_back(std::move(c));
  }

  // The end of an edge that is on a communicator's lane.
  size_t collective_at(const plan::Task& task) const {
    return collective_of_.at(lanes_.at(task.lane - 1).collectives.at(task.number));
  }
  // The end that is on the compute lane.
  size_t kernel_at(const plan::Task& task) const { return static_cast<size_t>(priced_.at(task.number)); }

  void read(const plan::Edge& edge) {
    if (edge.to.lane == 0)
      waited_by_[kernel_at(edge.to)].push_back(collective_at(edge.from));
    else if (edge.from.lane == 0)
      kernels_before_[collective_at(edge.to)].push_back(kernel_at(edge.from));
    else
      collectives_before_[collective_at(edge.to)].push_back(collective_at(edge.from));
  }

  // Whose run a task of `part` that stands at `position` waits for; nothing: one of the step before.
  std::optional<Stop> stop_for(size_t collective, Part part, int64_t position) const {
    const Collective& c = out_.collectives[collective];
    const bool in_loop = part == Part::First || part == Part::Middle || part == Part::Last;
    if (c.part > part && !(c.part == Part::Last && in_loop)) return std::nullopt;
    if (c.part != Part::Last || !in_loop || (c.position < position && ir::runs_in(*c.op, part)))
      return c.part == part && c.position > position ? std::nullopt : std::optional<Stop>({collective, false});
    if (!ir::is_repeated(*c.op)) return std::nullopt;
    return Stop{collective, true};
  }

  // After which kernel of the part each collective of it starts: as many as come before.
  std::vector<std::pair<size_t, size_t>> starts_of(Part part) const {
    std::unordered_map<size_t, size_t> place;  // of a kernel in the part
    const auto& kernels = order_[static_cast<size_t>(part)];
    for (size_t i = 0; i < kernels.size(); ++i) place[kernels[i]] = i + 1;
    std::vector<size_t> on_lane(lanes_.size());
    std::unordered_map<size_t, size_t> after;
    std::vector<std::pair<size_t, size_t>> starts;  // after how many kernels; the collective
    for (size_t n = 0; n < out_.collectives.size(); ++n) {
      const Collective& c = out_.collectives[n];
      if (!ir::runs_in(*c.op, part)) continue;
      size_t& gap = on_lane[c.communicator];
      if (const auto before = kernels_before_.find(n); before != kernels_before_.end())
        for (const size_t k : before->second)
          if (const auto found = place.find(k); found != place.end() && out_.kernel_position[k] < c.position)
            gap = std::max(gap, found->second);
      if (const auto before = collectives_before_.find(n); before != collectives_before_.end())
        for (const size_t other : before->second)
          if (const auto found = after.find(other); found != after.end()) gap = std::max(gap, found->second);
      after[n] = gap;
      starts.emplace_back(gap, n);
    }
    std::ranges::stable_sort(starts, {}, &std::pair<size_t, size_t>::first);
    return starts;
  }

  void write(Part part) {
    const auto& kernels = order_[static_cast<size_t>(part)];
    tasks_ = &out_.tasks[static_cast<size_t>(part)];
    waited_.clear();
    const auto starts = starts_of(part);
    auto next = starts.begin();
    for (size_t i = 0; i <= kernels.size(); ++i) {
      std::vector<Stop> stops;  // before this kernel
      if (i < kernels.size())
        if (const auto found = waited_by_.find(kernels[i]); found != waited_by_.end())
          for (const size_t c : found->second)
            if (const auto stop = stop_for(c, part, out_.kernel_position[kernels[i]])) stops.push_back(*stop);
      std::ranges::sort(stops, {}, [&](const Stop& s) { return std::pair(!s.previous, wait_position(s.collective)); });
      for (; next != starts.end() && next->first == i; ++next) start_after(next->second, part, stops);
      for (const Stop& stop : stops) wait(stop);
      if (i < kernels.size()) compute(kernels[i]);
    }
    if (part != Part::Tail) return;
    for (size_t n = 0; n < out_.collectives.size(); ++n)  // the step ends when all is over
      if (!ever_waited_.contains(n)) wait({n, false});
  }

  // What is done on its own lane before it, or has an edge to it, is waited for first.
  void start_after(size_t collective, Part part, const std::vector<Stop>& stops) {
    const Collective& c = out_.collectives[collective];
    for (const Stop& stop : stops)
      if (out_.collectives[stop.collective].communicator == c.communicator &&
          (stop.previous || stop.collective < collective))
        wait(stop);
    if (const auto before = collectives_before_.find(collective); before != collectives_before_.end())
      for (const size_t other : before->second)
        if (const auto stop = stop_for(other, part, c.position)) wait(*stop);
    tasks_->push_back({.kind = Task::Start, .collective = collective, .position = c.position});
  }

  void wait(const Stop& stop) {
    if (!waited_.insert(stop).second) return;
    if (!stop.previous) ever_waited_.insert(stop.collective);
    tasks_->push_back({.kind = Task::Wait,
                       .collective = stop.collective,
                       .position = wait_position(stop.collective),
                       .previous = stop.previous});
  }

  int64_t wait_position(size_t collective) const {
    const Collective& c = out_.collectives[collective];
    const auto found = wait_position_.find(c.op);
    return found == wait_position_.end() || blocks_at(*c.op) ? c.position : found->second;
  }

  void compute(size_t kernel) {
    if (tasks_->empty() || tasks_->back().kind != Task::Compute)
      tasks_->push_back({.kind = Task::Compute, .first = out_.order.size()});
    out_.order.push_back(kernel);
    ++tasks_->back().count;
  }

  // What stands for the collective where gathers that run once per step are broadcasts.
  std::string kind_of(const Op& op) const {
    const std::string_view kind = ir::collective_kind(op);
    if (!broadcasts_) return std::string(kind);
    if (part_of(op.section) == Part::Head && kind == "all_gather") return "broadcast";
    return std::string(kind == "reduce_scatter" ? "all_reduce" : kind);
  }

  cost::CollectiveCost cost_of(const Collective& c) const {
    const cost::GroupShape group = out_.groups[c.communicator];
    if (!broadcasts_ || c.kind != "broadcast") return cost::collective_cost(c.kind, c.bytes, group, machine_);
    const auto ranks = static_cast<double>(group.size);
    const cost::CollectiveCost one = cost::collective_cost("broadcast", c.bytes / ranks, group, machine_);
    return {.latency = ranks * one.latency, .node = ranks * one.node, .network = ranks * one.network};
  }

  const Graph& graph_;
  const cost::Machine& machine_;
  const bool blocks_;  // a collective is over when it has started
  const StepGathers gathers_;
  const Reductions reductions_;
  const bool broadcasts_;  // of gathers that run once per step, if there are any
  RankProgram out_;
  std::vector<plan::CommLane> lanes_;
  std::array<std::vector<size_t>, kParts> order_;         // kernels
  std::unordered_map<const Op*, size_t> collective_of_;   // by its op
  std::unordered_map<const Op*, int64_t> wait_position_;  // of a start
  std::vector<int> priced_;                               // by number of a plan's kernel: what it is in out_.kernels
  using Ends = std::unordered_map<size_t, std::vector<size_t>>;
  Ends waited_by_, kernels_before_, collectives_before_;  // by kernel: collectives; by collective: kernels, collectives
  std::vector<Task>* tasks_ = nullptr;                    // of the part that is written
  std::set<Stop> waited_;                                 // in that part
  std::set<size_t> ever_waited_;                          // collectives, in any
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
  return Maker(graph, machine, execution, system, gathers, composites, reductions).make(edges);
}

}  // namespace sfsdp::sim
