// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/sim/report/memory_timeline.h"

#include <algorithm>
#include <unordered_set>

#include "sfsdp/ir/opset.h"
#include "sfsdp/sim/program.h"

namespace sfsdp::sim {
namespace {

using ir::Graph, ir::Op, ir::Section, ir::Value;

class Classifier {
 public:
  explicit Classifier(const Graph& graph) {
    for (const auto& op : graph.ops()) {
      if (makes_parameter(*op))
        for (const auto& result : op->results()) parameters_.insert(result.get());
      if (flows_back(*op))
        for (const auto& result : op->results()) backward_.insert(result.get());
    }
    for (const auto& op : graph.ops())
      if (op->section != Section::Fwd && reduces(*op))
        for (const Value* operand : op->operands) add_gradient(operand);
  }

  MemoryKind kind_of(const plan::Buffer& buffer, int64_t first_of_backward) const {
    const Value* value = buffer.value;
    const Op& op = *value->producer();
    if (parameters_.contains(value)) return MemoryKind::Parameters;
    if (gradients_.contains(value) || reduces(op) || op.is("gradient", "scale")) return MemoryKind::Gradients;
    const bool forward = op.section == Section::Fwd || op.section == Section::Loss;
    if (ir::is_root(op) || (forward && buffer.last >= first_of_backward)) return MemoryKind::Activations;
    if (op.section == Section::Bwd && !backward_.contains(value)) return MemoryKind::Activations;
    return MemoryKind::Workspace;
  }

 private:
  static bool reduces(const Op& op) {
    return op.section != Section::Fwd &&
           op.is("reduce_scatter", "reduce_scatter.start", "all_reduce", "all_reduce.start", "pack", "accumulate");
  }

  // True for what is made of a parameter alone, by ops that compute nothing.
  bool makes_parameter(const Op& op) const {
    if (op.is("param")) return true;
    const bool moves = ir::aliased_operand(op) >= 0 || op.is("all_gather", "all_gather.start", "cast", "wait", "view",
                                                             "narrow", "pad", "pack", "unpack");
    return moves && !op.operands.empty() && parameters_.contains(op.operands[0]);
  }

  // A gradient, or computed of one; what backward computes again of forward is not.
  bool flows_back(const Op& op) const {
    if (op.section != Section::Bwd) return false;
    return op.bwd_of || std::ranges::any_of(op.operands, [&](const Value* v) { return backward_.contains(v); });
  }

  // The buffer of a gradient on its way to the reduction, and those it was cast or padded from.
  void add_gradient(const Value* value) {
    while (value) {
      value = ir::storage_of(value);
      const Op& op = *value->producer();
      if (op.section != Section::Bwd || !gradients_.insert(value).second) return;
      value = op.is("cast", "pad") ? op.operands[0] : nullptr;
    }
  }

  std::unordered_set<const Value*> parameters_, backward_, gradients_;
};

// The ops of each part, in order.
std::array<std::vector<int64_t>, kParts> positions_of(const Graph& graph) {
  std::array<std::vector<int64_t>, kParts> positions;
  for (size_t i = 0; i < graph.ops().size(); ++i) {
    const Op& op = *graph.ops()[i];
    for (size_t p = 0; p < kParts; ++p)
      if (ir::runs_in(op, static_cast<Part>(p))) positions[p].push_back(static_cast<int64_t>(i));
  }
  return positions;
}

// What is alive at each op.
std::vector<MemorySample> alive_by_position(const Graph& graph, const plan::MemoryPlan& plan) {
  std::vector<MemorySample> alive(graph.ops().size() + 1);
  const std::vector<MemoryKind> kinds = memory_kinds(graph, plan);
  for (size_t b = 0; b < plan.buffers.size(); ++b) {
    const plan::Buffer& buffer = plan.buffers[b];
    const auto kind = static_cast<size_t>(kinds[b]);
    alive[static_cast<size_t>(buffer.first)].bytes[kind] += buffer.bytes;
    const auto after = static_cast<size_t>(buffer.last) + 1;
    if (after < alive.size()) alive[after].bytes[kind] -= buffer.bytes;
  }
  for (size_t i = 1; i < alive.size(); ++i)
    for (size_t k = 0; k < kMemoryKinds; ++k) alive[i].bytes[k] += alive[i - 1].bytes[k];
  return alive;
}

}  // namespace

std::string_view to_string(MemoryKind kind) {
  constexpr std::array<std::string_view, kMemoryKinds> kNames = {"parameters", "activations", "gradients", "workspace"};
  return kNames.at(static_cast<size_t>(kind));
}

std::vector<MemoryKind> memory_kinds(const Graph& graph, const plan::MemoryPlan& plan) {
  const Classifier classifier(graph);
  const auto backward = std::ranges::find_if(graph.ops(), [](const auto& op) { return op->section == Section::Bwd; });
  std::vector<MemoryKind> kinds;
  for (const plan::Buffer& buffer : plan.buffers)
    kinds.push_back(classifier.kind_of(buffer, backward - graph.ops().begin()));
  return kinds;
}

std::vector<MemorySample> memory_over_time(const Graph& graph, const plan::MemoryPlan& plan,
                                           const Simulation& simulation) {
  const std::vector<MemorySample> alive = alive_by_position(graph, plan);
  const auto positions = positions_of(graph);
  std::vector<const Event*> events;  // in the order of the program
  for (const Event& e : simulation.events)
    if (e.lane == 0) events.push_back(&e);
  std::vector<MemorySample> samples;
  size_t next = 0;
  double now = 0;
  const auto walk = [&](Part part) {
    MemorySample fullest;
    const auto put = [&](double at) {
      fullest.at = at;
      samples.push_back(fullest);
      fullest = {};
    };
    for (const int64_t position : positions[static_cast<size_t>(part)]) {
      const MemorySample& here = alive[static_cast<size_t>(position)];
      if (here.total() > fullest.total()) fullest = here;
      for (; next < events.size() && events[next]->position == position; ++next) {
        if (here.total() > fullest.total()) fullest = here;
        now = events[next]->end;
        put(events[next]->begin);
      }
    }
    if (fullest.total() > 0) put(now);
  };
  for (const Part part : ir::parts_of_step(simulation.micro_batches)) walk(part);
  MemorySample end = alive.back();
  end.at = simulation.step_seconds;
  samples.push_back(end);
  return samples;
}

}  // namespace sfsdp::sim
