// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/sim/simulate.h"

#include <algorithm>
#include <unordered_map>

#include "sfsdp/base/check.h"
#include "sfsdp/base/philox.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/cost/collective_cost.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/mesh/device_mesh.h"

namespace sfsdp::sim {
namespace {

using ir::Graph, ir::Op, ir::Section;

// What the simulation does with one op, the same on every rank.
struct Task {
  enum Kind : uint8_t { Nothing, Kernel, Start, Wait, Blocking } kind = Nothing;
  const Op* op = nullptr;
  double seconds = 0;
  int collective = -1;  // of Start, Wait and Blocking: index among the starts
  std::string what;     // all_gather, …
  int axes = -1;        // index of its axis list
};

double bytes_of(const Op& op) {
  return static_cast<double>(std::max(op.result()->type().bytes(), op.operands[0]->type().bytes()));
}

// The ranks of a collective by their stride: those of the innermost axis it names.
cost::GroupShape shape_of(const Graph& graph, const std::vector<std::string>& axes) {
  cost::GroupShape shape;
  int64_t stride = 1;
  bool inner = true;
  for (size_t i = graph.mesh.size(); i-- > 0;) {  // inner axes first
    const ir::MeshAxis& axis = graph.mesh[i];
    if (std::ranges::find(axes, axis.name) != axes.end()) {
      shape.size *= axis.size;
      if (inner) shape.stride = stride;
      inner = false;
    }
    stride *= axis.size;
  }
  return shape;
}

bool repeats(Section section) { return section == Section::Fwd || section == Section::Loss || section == Section::Bwd; }

class Simulator {
 public:
  Simulator(const Graph& graph, const cost::Machine& machine, const SimulateOptions& options)
      : graph_(graph),
        options_(options),
        mesh_(graph.mesh),
        kernels_(cost::form_kernels(graph, machine, options.execution)) {
    std::unordered_map<const Op*, int> starts;
    std::vector<bool> begun(kernels_.kernels.size(), false);
    for (size_t i = 0; i < graph.ops().size(); ++i) {
      const Op& op = *graph.ops()[i];
      Task task;
      task.op = &op;
      if (ir::is_collective(op)) {
        task.kind = ir::is_start(op) ? Task::Start : Task::Blocking;
        task.what = ir::collective_kind(op);
        const auto axes = ir::axes_of(op).value_or(std::vector<std::string>{});
        task.seconds = cost::collective_seconds(task.what, bytes_of(op), shape_of(graph, axes), machine);
        task.axes = axes_index(axes);
        task.collective = static_cast<int>(starts.size());
        starts.emplace(&op, task.collective);
      } else if (ir::is_wait(op)) {
        const auto start = starts.find(op.operands[0]->producer());
        if (start == starts.end()) continue;  // carried over from the step before
        task.kind = Task::Wait;
        task.what = ir::collective_kind(*op.operands[0]->producer());
        task.collective = start->second;
      } else if (const int k = kernels_.kernel_of[i]; k >= 0 && !begun[static_cast<size_t>(k)]) {
        // A fused kernel runs where its first op stands.
        begun[static_cast<size_t>(k)] = true;
        task.kind = Task::Kernel;
        task.seconds = kernels_.kernels[static_cast<size_t>(k)].seconds;
      }
      if (task.kind != Task::Nothing) tasks_.push_back(std::move(task));
    }
    collectives_ = starts.size();
  }

  Simulation run() {
    const int64_t ranks = options_.jitter > 0 ? mesh_.world_size() : 1;
    std::vector<double> compute(static_cast<size_t>(ranks)), lane(compute), slowness(compute);
    for (size_t r = 0; r < slowness.size(); ++r) {
      const auto words = philox4x32(options_.seed, 0, r);
      slowness[r] = 1 + options_.jitter * static_cast<double>(words[0]) * 0x1p-32;
    }
    std::vector<std::vector<double>> done(collectives_, std::vector<double>(compute.size()));
    const auto pass = [&](auto in_pass) {
      for (const Task& task : tasks_) {
        if (!in_pass(*task.op)) continue;
        switch (task.kind) {
          case Task::Kernel: run_kernel(task, compute, slowness); break;
          case Task::Start: run_collective(task, compute, lane, done[static_cast<size_t>(task.collective)]); break;
          case Task::Wait: wait(task, compute, done[static_cast<size_t>(task.collective)]); break;
          case Task::Blocking:
            run_collective(task, compute, lane, done[static_cast<size_t>(task.collective)]);
            wait(task, compute, done[static_cast<size_t>(task.collective)]);
            break;
          case Task::Nothing: break;
        }
      }
    };
    pass([](const Op& op) { return op.section == Section::Init; });
    for (int64_t m = 0; m < options_.micro_batches; ++m) pass([](const Op& op) { return repeats(op.section); });
    pass([](const Op& op) { return op.section != Section::Init && !repeats(op.section); });
    for (size_t r = 0; r < compute.size(); ++r) out_.step_seconds = std::max({out_.step_seconds, compute[r], lane[r]});
    for (const auto& op : graph_.ops())
      out_.flops += cost::flops_of(*op) * static_cast<double>(repeats(op->section) ? options_.micro_batches : 1);
    out_.kernels = std::move(kernels_);
    return std::move(out_);
  }

 private:
  int axes_index(const std::vector<std::string>& axes) {
    const auto found = std::ranges::find(axis_lists_, axes);
    if (found != axis_lists_.end()) return static_cast<int>(found - axis_lists_.begin());
    axis_lists_.push_back(axes);
    std::vector<std::vector<size_t>> groups;  // each once
    std::vector<int> group_of(static_cast<size_t>(mesh_.world_size()), -1);
    if (options_.jitter > 0)
      for (int64_t r = 0; r < mesh_.world_size(); ++r) {
        if (group_of[static_cast<size_t>(r)] >= 0) continue;
        groups.emplace_back();
        for (const int64_t member : mesh_.ranks_of_group(r, axes)) {
          group_of[static_cast<size_t>(member)] = static_cast<int>(groups.size()) - 1;
          groups.back().push_back(static_cast<size_t>(member));
        }
      }
    else
      groups = {{0}};
    groups_.push_back(std::move(groups));
    return static_cast<int>(axis_lists_.size()) - 1;
  }

  void run_kernel(const Task& task, std::vector<double>& compute, const std::vector<double>& slowness) {
    out_.events.push_back({task.op, Lane::Compute, compute[0], compute[0] + task.seconds * slowness[0]});
    out_.compute_seconds += task.seconds * slowness[0];
    for (size_t r = 0; r < compute.size(); ++r) compute[r] += task.seconds * slowness[r];
  }

  // Begins when the last of a group has come: its compute is there, and its communication lane is free.
  void run_collective(const Task& task, const std::vector<double>& compute, std::vector<double>& lane,
                      std::vector<double>& done) {
    for (const auto& group : groups_[static_cast<size_t>(task.axes)]) {
      double begin = 0;
      for (const size_t r : group) begin = std::max({begin, compute[r], lane[r]});
      for (const size_t r : group) done[r] = lane[r] = begin + task.seconds;
    }
    out_.events.push_back({task.op, Lane::Communication, done[0] - task.seconds, done[0]});
    out_.communication_seconds[task.what] += task.seconds;
    out_.communicated_bytes[task.what] += bytes_of(*task.op);
  }

  void wait(const Task& task, std::vector<double>& compute, const std::vector<double>& done) {
    out_.exposed_seconds[task.what] += std::max(0.0, done[0] - compute[0]);
    for (size_t r = 0; r < compute.size(); ++r) compute[r] = std::max(compute[r], done[r]);
  }

  const Graph& graph_;
  SimulateOptions options_;
  DeviceMesh mesh_;
  cost::KernelTable kernels_;
  std::vector<Task> tasks_;
  size_t collectives_ = 0;
  std::vector<std::vector<std::string>> axis_lists_;
  std::vector<std::vector<std::vector<size_t>>> groups_;  // by axis list
  Simulation out_;
};

}  // namespace

double Simulation::exposed() const {
  double sum = 0;
  for (const auto& [kind, seconds] : exposed_seconds) sum += seconds;
  return sum;
}

Simulation simulate(const Graph& graph, const cost::Machine& machine, const SimulateOptions& options) {
  return Simulator(graph, machine, options).run();
}

std::string chrome_trace(const Simulation& simulation) {
  std::string text = R"({"displayTimeUnit":"ms","traceEvents":[)";
  const auto row = [&](const std::string& event) { text += (text.back() == '[' ? "\n" : ",\n") + event; };
  for (const auto& [tid, name] : {std::pair(0, "compute"), std::pair(1, "communication")})
    row(concat(R"({"ph":"M","pid":0,"tid":)", tid, R"(,"name":"thread_name","args":{"name":")", name, "\"}}"));
  for (const Event& e : simulation.events) {
    const std::string name =
        e.op->results().empty() ? e.op->opcode : concat(e.op->opcode, " %", e.op->result()->name());
    row(concat(R"({"ph":"X","pid":0,"tid":)", static_cast<int>(e.lane), ",\"ts\":", e.begin * 1e6,
               ",\"dur\":", (e.end - e.begin) * 1e6, ",\"name\":", json_quoted(name), ",\"cat\":\"",
               ir::to_string(e.op->section), "\",\"args\":{\"module\":", json_quoted(e.op->module_path), "}}"));
  }
  return text + "\n]}\n";
}

}  // namespace sfsdp::sim
