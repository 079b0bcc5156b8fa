// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/sim/report/memory_timeline.h"

#include <algorithm>
#include <unordered_set>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/loops.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/part.h"
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
    const bool forward = ir::is_forward(op.section);
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

// By position: true where the first op of a kernel stands.
std::vector<bool> begins_of_kernels(const cost::KernelTable& kernels) {
  std::vector<bool> begins(kernels.kernel_of.size()), seen(kernels.kernels.size());
  for (size_t i = 0; i < begins.size(); ++i) {
    const int kernel = kernels.kernel_of[i];
    if (kernel < 0 || seen[static_cast<size_t>(kernel)]) continue;
    begins[i] = seen[static_cast<size_t>(kernel)] = true;
  }
  return begins;
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

// Within a part kernels run in the graph's order; starts and waits may run before or after where they stand. So the walk
// goes by kernels: what is alive at each while it runs, then, until the next one begins, the most that is alive at the ops
// that stand between the two.
std::vector<MemorySample> memory_over_time(const Graph& graph, const plan::MemoryPlan& plan,
                                           const Simulation& simulation) {
  const std::vector<MemorySample> alive = alive_by_position(graph, plan);
  const std::vector<bool> begins_kernel = begins_of_kernels(simulation.kernels);
  const auto positions = positions_of(graph);
  const std::vector<ir::Loop> loops = ir::loops_of(graph);  // their bodies make no trip (sim/program.h)
  std::vector<MemorySample> samples;
  const auto put = [&](MemorySample sample, double at) {
    sample.at = at;
    samples.push_back(sample);
  };
  auto event = simulation.events.begin();
  double now = 0;           // when the last kernel ended
  MemorySample in_between;  // the most since then
  const auto put_in_between = [&] {
    if (in_between.total() > 0) put(in_between, now);
    in_between = {};
  };
  for (const Part part : ir::parts_of_step(simulation.micro_batches)) {
    for (const int64_t position : positions[static_cast<size_t>(part)]) {
      if (ir::loop_around(loops, static_cast<size_t>(position))) continue;
      const MemorySample& here = alive[static_cast<size_t>(position)];
      if (!begins_kernel[static_cast<size_t>(position)]) {
        if (here.total() > in_between.total()) in_between = here;
        continue;
      }
      event = std::find_if(event, simulation.events.end(), [](const Event& e) { return e.kind == Event::Kernel; });
      SFSDP_CHECK(event != simulation.events.end() && event->position == position, "no kernel ran at op ", position,
                  " of part ", static_cast<int>(part));
      put_in_between();
      put(here, event->begin);
      now = event->end;
      ++event;
    }
  }
  put_in_between();
  put(alive.back(), simulation.step_seconds);
  return samples;
}

}  // namespace sfsdp::sim
