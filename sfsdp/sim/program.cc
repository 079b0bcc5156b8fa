// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/sim/program.h"

#include <algorithm>
#include <unordered_map>

#include "sfsdp/ir/opset.h"

namespace sfsdp::sim {
namespace {

using ir::Graph, ir::Op, ir::Section;

double bytes_of(const Op& op) {
  return static_cast<double>(std::max(op.result()->type().bytes(), op.operands[0]->type().bytes()));
}

class Maker {
 public:
  Maker(const Graph& graph, const cost::Machine& machine, cost::Execution execution, cost::System system,
        StepGathers gathers)
      : graph_(graph),
        machine_(machine),
        blocks_(execution == cost::Execution::Reference),
        gathers_(gathers),
        broadcasts_(gathers == StepGathers::Broadcast && std::ranges::any_of(graph.ops(), [](const auto& op) {
                      return part_of(op->section) == Part::Head && ir::collective_kind(*op) == "all_gather";
                    })) {
    out_.kernels = cost::price_kernels(graph, machine, execution, system);
    out_.kernel_position.assign(out_.kernels.kernels.size(), -1);
  }

  RankProgram make() {
    for (size_t i = 0; i < graph_.ops().size(); ++i) {
      const Op& op = *graph_.ops()[i];
      const auto position = static_cast<int64_t>(i);
      if (ir::is_collective(op)) {
        start(op, position);
        if (blocks_at(op) || !ir::is_start(op)) wait(op, &op, position);
      } else if (ir::is_wait(op) && !blocks_at(*op.operands[0]->producer())) {
        wait(op, op.operands[0]->producer(), position);
      }
      if (const int k = out_.kernels.kernel_of[i]; k >= 0) compute(op, static_cast<size_t>(k), position);
    }
    // A stretch is a range of `order`; the parts' own lists are put one after the other.
    for (size_t p = 0; p < kParts; ++p) {
      for (Task& task : out_.tasks[p])
        if (task.kind == Task::Compute) task.first += out_.order.size();
      out_.order.insert(out_.order.end(), order_[p].begin(), order_[p].end());
    }
    return std::move(out_);
  }

 private:
  bool blocks_at(const Op& start) const {
    return blocks_ || (part_of(start.section) == Part::Head && gathers_ != StepGathers::Forward);
  }

  static std::vector<size_t> parts_of(const Op& op) {
    const auto part = static_cast<size_t>(part_of(op.section));
    if (ir::is_repeated(op)) return {static_cast<size_t>(Part::Body), part};
    return {part};
  }

  // A fused kernel runs where its first op stands, the copy out of a gather after its wait.
  void compute(const Op& op, size_t kernel, int64_t position) {
    if (out_.kernel_position[kernel] >= 0) return;
    out_.kernel_position[kernel] = position;
    for (const size_t part : parts_of(op)) {
      std::vector<Task>& tasks = out_.tasks[part];
      if (tasks.empty() || tasks.back().kind != Task::Compute)
        tasks.push_back({.kind = Task::Compute, .first = order_[part].size()});
      order_[part].push_back(kernel);
      ++tasks.back().count;
    }
  }

  void start(const Op& op, int64_t position) {
    const auto axes = ir::axes_of(op).value_or(std::vector<std::string>{});
    Collective c;
    c.op = &op;
    c.position = position;
    c.part = part_of(op.section);
    c.kind = kind_of(op);
    c.bytes = bytes_of(op);
    c.communicator = communicator_of(axes);
    c.slowdown = cost::overlap_slowdown(out_.groups[c.communicator], machine_);
    c.cost = cost_of(c);
    collective_of_.emplace(&op, out_.collectives.size());
    for (const size_t part : parts_of(op)) {
      int64_t& turn = static_cast<Part>(part) == Part::Body ? c.body_turn : c.turn;
      turn = out_.turns[part][c.communicator]++;
      out_.tasks[part].push_back({.kind = Task::Start, .collective = out_.collectives.size(), .position = position});
    }
    out_.collectives.push_back(std::move(c));
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

  void wait(const Op& op, const Op* started, int64_t position) {
    const size_t collective = collective_of_.at(started);
    Collective& c = out_.collectives[collective];
    c.waits_repeat |= c.part == Part::Head && ir::is_repeated(op);
    for (const size_t part : parts_of(op))
      out_.tasks[part].push_back({.kind = Task::Wait, .collective = collective, .position = position});
  }

  size_t communicator_of(const std::vector<std::string>& axes) {
    const auto found = std::ranges::find(out_.communicators, axes);
    const auto index = static_cast<size_t>(found - out_.communicators.begin());
    if (found == out_.communicators.end()) {
      out_.communicators.push_back(axes);
      out_.groups.push_back(shape_of(graph_.mesh, axes));
      for (auto& turns : out_.turns) turns.push_back(0);
    }
    return index;
  }

  const Graph& graph_;
  const cost::Machine& machine_;
  const bool blocks_;  // a collective is over when it has started
  const StepGathers gathers_;
  const bool broadcasts_;  // of gathers that run once per step, if there are any
  RankProgram out_;
  std::array<std::vector<size_t>, kParts> order_;
  std::unordered_map<const Op*, size_t> collective_of_;
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

Part part_of(Section section) {
  if (section == Section::Init) return Part::Head;
  return ir::is_repeated(section) ? Part::Last : Part::Tail;
}

RankProgram make_program(const Graph& graph, const cost::Machine& machine, cost::Execution execution,
                         cost::System system, StepGathers gathers) {
  return Maker(graph, machine, execution, system, gathers).make();
}

}  // namespace sfsdp::sim
