// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/verify/verify_plan.h"

#include <algorithm>
#include <unordered_map>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/cost/kernels.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/mesh/device_mesh.h"
#include "sfsdp/plan/verify/axis_states.h"
#include "sfsdp/plan/verify/buffers.h"
#include "sfsdp/plan/verify/hazards.h"
#include "sfsdp/plan/verify/kernels.h"
#include "sfsdp/plan/verify/layouts.h"
#include "sfsdp/plan/verify/packed_sums.h"
#include "sfsdp/plan/verify/rendezvous.h"
#include "sfsdp/plan/verify/rounds.h"
#include "sfsdp/plan/views.h"

namespace sfsdp::plan {
namespace {

using ir::Graph, ir::Op;

void check_lanes(const StepPlan& plan, Notes& note) {
  std::unordered_map<const Op*, const CommLane*> lane_of;
  for (const CommLane& lane : plan.lanes)
    for (const Op* op : lane.collectives)
      if (!lane_of.emplace(op, &lane).second)
        note("collective %", op->result()->name(), " is on two lanes, or twice on one\n  expected once");
  std::unordered_map<const CommLane*, size_t> next;
  for (const auto& op : plan.graph.ops()) {
    if (!ir::is_collective(*op)) continue;
    const auto found = lane_of.find(op.get());
    const auto axes = ir::axes_of(*op).value_or(std::vector<std::string>{});
    if (found == lane_of.end()) {
      note("collective %", op->result()->name(), " is on no lane\n  expected that of ", join(axes, ","));
      continue;
    }
    const CommLane& lane = *found->second;
    if (lane.axes != axes)
      note("collective %", op->result()->name(), " over ", join(axes, ","), " is on the lane of ", join(lane.axes, ","),
           "\n  expected its own axes'");
    size_t& at = next[&lane];
    if (lane.collectives[at] != op.get())
      note("lane ", join(lane.axes, ","), " has %", lane.collectives[at]->result()->name(), " in place ", at + 1,
           ", the program %", op->result()->name(), "\n  expected the program's order");
    ++at;
  }
  for (const auto& [op, lane] : lane_of)
    if (!ir::is_collective(*op))
      note("%", op->result()->name(), " on lane ", join(lane->axes, ","), " is no collective",
           "\n  expected collectives alone on lanes of communicators");
}

// Edges lead from task to task of two lanes.
void check_tasks(const StepPlan& plan, Notes& note) {
  if (plan.memory.workspaces.size() != plan.lanes.size() + 1)
    note(plan.memory.workspaces.size(), " workspaces\n  expected one for each of ", plan.lanes.size() + 1, " lanes");
  const cost::Kernels all = cost::kernels_of(plan.graph);
  const int64_t largest = cost::workspace_bytes(plan.graph, all, plan.target);
  for (size_t lane = 0; lane < plan.memory.workspaces.size(); ++lane)
    note.compare(lane == 0 ? "workspace of lane compute" : "workspace of a communicator", plan.memory.workspaces[lane],
                 lane == 0 ? largest
                           : plan.target.communicator_bytes +
                                 (lane <= plan.lanes.size() ? staging_bytes(plan.lanes[lane - 1]) : 0));
  const size_t kernels = all.ops.size();
  const auto exists = [&](const Task& task) {
    return task.lane == 0
               ? task.number < kernels
               : task.lane <= plan.lanes.size() && task.number < plan.lanes[task.lane - 1].collectives.size();
  };
  for (const Edge& edge : plan.edges)
    if (!exists(edge.from) || !exists(edge.to) || edge.from.lane == edge.to.lane)
      note("an edge from ", edge.from.number, " of lane ", edge.from.lane, " to ", edge.to.number, " of lane ",
           edge.to.lane, "\n  expected tasks of two lanes of the plan");
  if (plan.load != host_load(plan.graph, plan.lanes))
    note(
        "the tasks that the host waits for, or that wait for the batch, are others\n  expected on each lane the first "
        "and "
        "the last that read the batch, lr, step or seed");
  if (!std::is_sorted(plan.edges.begin(), plan.edges.end()) ||
      std::ranges::adjacent_find(plan.edges) != plan.edges.end())
    note("edges are not in order, or twice\n  expected each once, sorted");
}

void check_budget(const Graph& graph, int64_t prefetch_bytes, Notes& note) {
  if (prefetch_bytes <= 0) return;
  int64_t bytes = 0;
  std::vector<const Op*> in_flight;  // in the order of their starts
  for (const auto& op : graph.ops()) {
    if (op->is("all_gather.start")) {
      in_flight.push_back(op.get());
      bytes += op->result()->type().bytes();
      if (bytes - in_flight[0]->result()->type().bytes() > prefetch_bytes)
        note("at %", op->result()->name(), " ", bytes, " bytes of gathers are in flight\n  expected at most ",
             prefetch_bytes, " besides the first of them");
    } else if (ir::is_wait(*op) && std::erase(in_flight, op->operands[0]->producer()) > 0) {
      bytes -= op->operands[0]->type().bytes();
    }
  }
}

}  // namespace

std::vector<std::string> verify_plan(const StepPlan& plan, const VerifyOptions& options) {
  Notes note;
  for (const ir::Diagnostic& d : ir::verify(plan.graph)) note(d);
  if (!note.errors.empty()) return note.errors;  // the rest would walk over a broken graph
  note.add(check_kernels(plan.graph));
  const size_t found = note.errors.size();
  check_lanes(plan, note);
  check_tasks(plan, note);
  if (note.errors.size() > found) return note.errors;  // the rest follows lanes and edges
  note.add(check_rendezvous(DeviceMesh(plan.graph.mesh), [&](int64_t) -> const Graph& { return plan.graph; }));
  note.add(check_axis_states(plan.graph));
  note.add(verify_layouts(plan.graph));
  note.add(check_packed_sums(plan.graph));
  note.add(check_rounds(plan.graph));
  for (const std::string& error : check_views(plan.graph, plan.memory.views)) note(error);
  check_buffers(plan, note);
  for (const std::string& error : check_hazards(plan)) note(error);
  check_budget(plan.graph, options.prefetch_bytes, note);
  return note.errors;
}

std::vector<std::string> verify_budget(const StepPlan& plan, int64_t prefetch_bytes) {
  Notes note;
  check_budget(plan.graph, prefetch_bytes, note);
  return note.errors;
}

}  // namespace sfsdp::plan
