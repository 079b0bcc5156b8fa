// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tune/scaled_step.h"

#include <algorithm>

#include "sfsdp/base/check.h"
#include "sfsdp/mesh/model_axis.h"
#include "sfsdp/sim/simulate.h"

namespace sfsdp::tune {
namespace {

using sim::RankProgram, sim::Task;

// The data axis that stored parameters are cut over, alone or with cp; "": none.
std::string shard_axis(const ir::Graph& graph) {
  for (const auto& op : graph.ops())
    if (op->is("param") && !op->result()->type().dims.empty())
      for (const auto& axis : op->result()->type().dims[0].split)
        if (!is_model_axis(axis)) return axis;
  return "";
}

double size_of(const std::string& name, const std::vector<ir::MeshAxis>& mesh) {
  const auto axis = std::ranges::find(mesh, name, &ir::MeshAxis::name);
  return axis == mesh.end() ? 1 : static_cast<double>(axis->size);
}

// Seconds of each stretch of kernels, part after part.
std::vector<double> stretches(const RankProgram& program) {
  std::vector<double> seconds;
  for (size_t p = 0; p < sim::kParts; ++p)
    for (const Task& task : program.tasks[p]) {
      if (task.kind != Task::Compute) continue;
      double sum = 0;
      for (size_t i = task.first; i < task.first + task.count; ++i)
        sum += program.kernels.kernels[program.order[i]].seconds_at(ir::beta_in(static_cast<sim::Part>(p)));
      seconds.push_back(sum);
    }
  return seconds;
}

// A kernel for each stretch, in the order of `stretches`.
void merge_kernels(RankProgram& program) {
  size_t next = 0;
  for (auto& tasks : program.tasks)
    for (Task& task : tasks)
      if (task.kind == Task::Compute) {
        task.first = next++;
        task.count = 1;
      }
  program.kernels.kernels.assign(next, {.ops = {nullptr}});
  program.kernels.kernel_of.clear();
  program.kernel_position.assign(next, -1);
  program.order.resize(next);
  for (size_t i = 0; i < next; ++i) program.order[i] = i;
}

// Bytes of a region that are alive at each op.
std::vector<double> live_of(const plan::StepPlan& plan, size_t region) {
  std::vector<double> live(plan.graph.ops().size() + 2);
  for (const plan::Buffer& b : plan.memory.buffers) {
    if (static_cast<size_t>(b.region) != region) continue;
    live[static_cast<size_t>(b.first)] += static_cast<double>(b.bytes);
    live[static_cast<size_t>(b.last) + 1] -= static_cast<double>(b.bytes);
  }
  for (size_t i = 1; i < live.size(); ++i) live[i] += live[i - 1];
  return live;
}

void check_alike(const RankProgram& a, const RankProgram& b) {
  bool alike = a.communicators == b.communicators && a.collectives.size() == b.collectives.size();
  for (size_t p = 0; alike && p < sim::kParts; ++p)
    alike = std::ranges::equal(a.tasks[p], b.tasks[p], [](const Task& x, const Task& y) {
      return x.kind == y.kind && x.collective == y.collective;
    });
  SFSDP_CHECK(alike, "two meshes give programs that differ in more than sizes");
}

RankProgram program_of(const ir::Graph& graph, const cost::Machine& machine) {
  return sim::make_program(graph, machine, cost::Execution::Fused, cost::System::Own);
}

}  // namespace

ScaledStep::ScaledStep(const plan::StepPlan& a, const plan::StepPlan& b, const cost::Machine& machine)
    : machine_(machine),
      axis_(shard_axis(a.graph)),
      shards_a_(size_of(axis_, a.graph.mesh)),
      shards_b_(size_of(axis_, b.graph.mesh)) {
  program_ = program_of(a.graph, machine);
  const RankProgram other = program_of(b.graph, machine);
  check_alike(program_, other);
  const auto fit_all = [&](const std::vector<double>& x, const std::vector<double>& y) {
    SFSDP_CHECK(x.size() == y.size(), x.size(), " and ", y.size());
    std::vector<Scaled> all;
    for (size_t i = 0; i < x.size(); ++i) all.push_back(fit(x[i], y[i]));
    return all;
  };
  seconds_ = fit_all(stretches(program_), stretches(other));
  for (size_t region = 0; region < plan::kRegions; ++region)
    live_.push_back(fit_all(live_of(a, region), live_of(b, region)));
  for (size_t i = 0; i < program_.collectives.size(); ++i)
    bytes_.push_back(fit(program_.collectives[i].bytes, other.collectives[i].bytes));
  const auto outside = [](const plan::StepPlan& plan) {
    return static_cast<double>(plan.memory.state_bytes + plan.memory.program_bytes + plan.memory.workspace_bytes());
  };
  outside_ = fit(outside(a), outside(b));
  merge_kernels(program_);
}

ScaledStep::Scaled ScaledStep::fit(double a, double b) const {
  if (shards_a_ == shards_b_) return {a, 0};
  const double shared = (a - b) / (1 / shards_a_ - 1 / shards_b_);
  return {a - shared / shards_a_, shared};
}

void ScaledStep::price_collectives(const std::vector<ir::MeshAxis>& mesh, double shards) {
  for (size_t i = 0; i < program_.communicators.size(); ++i)
    program_.groups[i] = sim::shape_of(mesh, program_.communicators[i]);
  for (size_t i = 0; i < program_.collectives.size(); ++i) {
    sim::Collective& c = program_.collectives[i];
    const cost::GroupShape& group = program_.groups[c.communicator];
    c.bytes = bytes_[i].at(shards);
    c.slowdown = cost::overlap_slowdown(group, machine_);
    c.cost = cost::collective_cost(c.kind, c.bytes, group, machine_);
  }
}

ScaledEstimate ScaledStep::at(const std::vector<ir::MeshAxis>& mesh, int64_t micro_batches) {
  const double shards = size_of(axis_, mesh);
  for (size_t i = 0; i < seconds_.size(); ++i) program_.kernels.kernels[i].seconds = seconds_[i].at(shards);
  price_collectives(mesh, shards);
  const sim::ProgramTimes times = sim::time_program(program_, micro_batches);
  ScaledEstimate out;
  out.seconds = times.step_seconds;
  out.compute_seconds = times.compute_seconds;
  out.exposed_seconds = times.exposed_seconds;
  double bytes = outside_.at(shards);
  for (const std::vector<Scaled>& region : live_) {
    double most = 0;
    for (const Scaled& live : region) most = std::max(most, live.at(shards));
    bytes += most;
  }
  out.peak_bytes = static_cast<int64_t>(bytes);
  return out;
}

}  // namespace sfsdp::tune
