// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/verify/verify_plan.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/cost/kernels.h"
#include "sfsdp/ir/loops.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/ir/view_geometry.h"
#include "sfsdp/mesh/chunk.h"
#include "sfsdp/mesh/device_mesh.h"
#include "sfsdp/plan/offsets.h"
#include "sfsdp/plan/verify/axis_states.h"
#include "sfsdp/plan/verify/hazards.h"
#include "sfsdp/plan/verify/kernels.h"
#include "sfsdp/plan/verify/rendezvous.h"
#include "sfsdp/plan/views.h"

namespace sfsdp::plan {
namespace {

using ir::Graph, ir::Op, ir::Value;

class Verifier {
 public:
  Verifier(const StepPlan& plan, const VerifyOptions& options) : plan_(plan), options_(options) {}

  std::vector<std::string> run() {
    for (const ir::Diagnostic& d : ir::verify(plan_.graph)) errors_.push_back(concat(d));
    if (!errors_.empty()) return errors_;  // the rest would walk over a broken graph
    note(check_kernels(plan_.graph));
    const size_t found = errors_.size();
    check_lanes();
    check_tasks();
    if (errors_.size() > found) return errors_;  // the rest follows lanes and edges
    note(check_rendezvous(DeviceMesh(plan_.graph.mesh), [&](int64_t) -> const Graph& { return plan_.graph; }));
    note(check_axis_states(plan_.graph));
    for (const std::string& error : check_views(plan_.graph, plan_.memory.views)) note(error);
    check_memory();
    for (const std::string& error : check_hazards(plan_)) note(error);
    check_budget();
    return errors_;
  }

 private:
  void note(const std::string& error) {
    if (!error.empty()) errors_.push_back(error);
  }

  void compare(const std::string& what, int64_t got, int64_t expected) {
    if (got != expected) note(concat(what, " = ", got, "\n  expected ", expected));
  }

  void check_lanes() {
    std::unordered_map<const Op*, const CommLane*> lane_of;
    for (const CommLane& lane : plan_.lanes)
      for (const Op* op : lane.collectives)
        if (!lane_of.emplace(op, &lane).second)
          note(concat("collective %", op->result()->name(), " is on two lanes, or twice on one\n  expected once"));
    std::unordered_map<const CommLane*, size_t> next;
    for (const auto& op : plan_.graph.ops()) {
      if (!ir::is_collective(*op)) continue;
      const auto found = lane_of.find(op.get());
      const auto axes = ir::axes_of(*op).value_or(std::vector<std::string>{});
      if (found == lane_of.end()) {
        note(concat("collective %", op->result()->name(), " is on no lane\n  expected that of ", join(axes, ",")));
        continue;
      }
      const CommLane& lane = *found->second;
      if (lane.axes != axes)
        note(concat("collective %", op->result()->name(), " over ", join(axes, ","), " is on the lane of ",
                    join(lane.axes, ","), "\n  expected its own axes'"));
      size_t& at = next[&lane];
      if (lane.collectives[at] != op.get())
        note(concat("lane ", join(lane.axes, ","), " has %", lane.collectives[at]->result()->name(), " in place ",
                    at + 1, ", the program %", op->result()->name(), "\n  expected the program's order"));
      ++at;
    }
    for (const auto& [op, lane] : lane_of)
      if (!ir::is_collective(*op))
        note(concat("%", op->result()->name(), " on lane ", join(lane->axes, ","), " is no collective",
                    "\n  expected collectives alone on lanes of communicators"));
  }

  // Edges lead from task to task of two lanes.
  void check_tasks() {
    if (plan_.memory.workspaces.size() != plan_.lanes.size() + 1)
      note(concat(plan_.memory.workspaces.size(), " workspaces\n  expected one for each of ", plan_.lanes.size() + 1,
                  " lanes"));
    const auto ops = cost::kernels_of(plan_.graph).ops;
    int64_t largest = 0;
    for (const auto& kernel : ops) largest = std::max(largest, cost::workspace_bytes(kernel, plan_.target));
    for (size_t lane = 0; lane < plan_.memory.workspaces.size(); ++lane)
      compare(lane == 0 ? "workspace of lane compute" : "workspace of a communicator", plan_.memory.workspaces[lane],
              lane == 0 ? largest : plan_.target.communicator_bytes);
    const size_t kernels = ops.size();
    const auto exists = [&](const Task& task) {
      return task.lane == 0
                 ? task.number < kernels
                 : task.lane <= plan_.lanes.size() && task.number < plan_.lanes[task.lane - 1].collectives.size();
    };
    for (const Edge& edge : plan_.edges)
      if (!exists(edge.from) || !exists(edge.to) || edge.from.lane == edge.to.lane)
        note(concat("an edge from ", edge.from.number, " of lane ", edge.from.lane, " to ", edge.to.number, " of lane ",
                    edge.to.lane, "\n  expected tasks of two lanes of the plan"));
    if (plan_.load != host_load(plan_.graph, plan_.lanes))
      note(
          "the tasks that the host waits for, or that wait for the batch, are others\n  expected on each lane the "
          "first and the last "
          "that read the batch, lr, step or seed");
    if (!std::is_sorted(plan_.edges.begin(), plan_.edges.end()) ||
        std::ranges::adjacent_find(plan_.edges) != plan_.edges.end())
      note("edges are not in order, or twice\n  expected each once, sorted");
  }

  void check_memory() {
    const MemoryPlan& m = plan_.memory;
    std::unordered_map<const Value*, const Buffer*> planned;
    for (const Buffer& b : m.buffers)
      if (!planned.emplace(b.value, &b).second) note(concat("%", b.value->name(), " has two buffers\n  expected one"));
    const Lifetimes needed = find_buffers(plan_.graph, {.target = plan_.target});
    check_inside(needed.inside);
    for (const Buffer& b : needed.buffers) {
      const auto found = planned.find(b.value);
      const std::string name = concat("%", b.value->name());
      if (found == planned.end()) {
        note(concat(name, " has no place in memory\n  expected a buffer of ", b.bytes, " bytes"));
        continue;
      }
      const Buffer& p = *found->second;
      if (p.bytes != b.bytes) note(concat(name, " has a buffer of ", p.bytes, " bytes\n  expected ", b.bytes));
      if (p.region != b.region)
        note(concat(name, " lies in region ", to_string(p.region), "\n  expected ", to_string(b.region)));
      if (p.first != b.first || p.last != b.last)
        note(concat(name, " is kept from op ", p.first, " to op ", p.last, "\n  expected ", b.first, " to ", b.last,
                    ": from the op that makes it to the last that reads it"));
      if (p.carried != b.carried)
        note(concat(name, p.carried ? " is carried" : " is not carried",
                    " from one micro-batch to the next\n  expected ",
                    b.carried ? "it, as they add up in it" : "that of sums alone"));
      planned.erase(found);
    }
    for (const auto& [value, buffer] : planned)
      note(concat("%", value->name(),
                  " has a buffer and needs none\n  expected none for state, views and what stays inside a kernel"));
    note(check_memory_plan(m, plan_.target));
    const Peak peak = live_peak(m.buffers);
    check_kept("state", m.state, [](const Op& op) { return op.is("param", "state"); });
    check_kept("what is constant", m.constants, [](const Op& op) { return op.is("constant", "scalar"); });
    check_carries();
    check_loops();
    check_regions();
    compare("live_bytes", m.live_bytes, peak.bytes);
    compare("peak_position", m.peak_position, peak.position);
  }

  void check_inside(const std::vector<Inside>& needed) {
    const auto text = [](const Inside& i) {
      return concat('%', i.value->name(), " inside %", i.host->name(), " at +", i.offset);
    };
    const auto missing = [](const std::vector<Inside>& of, const Inside& i) {
      return std::ranges::find(of, i) == of.end();
    };
    if (plan_.memory.inside == needed) return;
    for (const Inside& i : plan_.memory.inside)
      if (missing(needed, i)) note(concat(text(i), "\n  expected it elsewhere: it may not lie there"));
    for (const Inside& i : needed)
      if (missing(plan_.memory.inside, i)) note(concat("nothing lies ", text(i), "\n  expected that"));
    if (plan_.memory.inside.size() != needed.size() || std::ranges::is_permutation(plan_.memory.inside, needed))
      note("what lies inside other buffers is out of order, or twice\n  expected each once, in the graph's order");
  }

  // Each ends where the last of its buffers does.
  void check_regions() {
    std::array<int64_t, kRegions> ends = {};
    ends[static_cast<size_t>(Region::Io)] = round_up(kHostBytes, plan_.target.alignment);
    for (const auto* buffers : {&plan_.memory.constants, &plan_.memory.state, &plan_.memory.buffers})
      for (const Buffer& b : *buffers) {
        int64_t& end = ends[static_cast<size_t>(b.region)];
        end = std::max(end, b.offset + b.bytes);
        if (b.region == Region::Io && b.offset < kHostBytes)
          note(concat('%', b.value->name(), " lies at io ", b.offset, "\n  expected it above the ", kHostBytes,
                      " bytes of lr, step, seed and micro_batch"));
      }
    for (const UnreadState& u : plan_.memory.unread) {
      int64_t& end = ends[static_cast<size_t>(u.region)];
      end = std::max(end, u.offset + u.bytes);
    }
    for (size_t r = 0; r < kRegions; ++r)
      compare(concat("region ", to_string(static_cast<Region>(r))), plan_.memory.region_bytes[r], ends[r]);
  }

  // A place for every value that `belongs`, as large as it is in whole units of its region, for the whole step.
  template <class Belongs>
  void check_kept(const char* section, const std::vector<Buffer>& buffers, Belongs belongs) {
    std::unordered_map<const Value*, const Buffer*> kept;
    for (const Buffer& b : buffers)
      if (!kept.emplace(b.value, &b).second || !belongs(*b.value->producer()))
        note(concat(
            "%", b.value->name(), " in ", section, "\n  expected ",
            buffers.data() == plan_.memory.state.data() ? "parameters, moments and counters" : "what the program holds",
            ", each once"));
    for (const auto& op : plan_.graph.ops()) {
      if (!belongs(*op)) continue;
      const auto found = kept.find(op->result());
      const std::string name = concat('%', op->result()->name());
      const int64_t needed = std::max<int64_t>(op->result()->type().bytes(), 1);
      if (found == kept.end()) {
        note(concat(name, " has no place in ", section, "\n  expected ", needed, " bytes of ", section));
        continue;
      }
      const Buffer& b = *found->second;
      const int64_t whole =
          round_up(needed, b.region == Region::Window ? plan_.target.window_alignment : plan_.target.alignment);
      if (b.bytes != whole) note(concat(name, " has ", b.bytes, " bytes\n  expected ", whole, " bytes of ", section));
      if (b.first != 0 || b.last != std::ssize(plan_.graph.ops()) || b.carried)
        note(concat(name, " is kept from op ", b.first, " to op ", b.last, b.carried ? ", carried" : "",
                    "\n  expected 0 to ", plan_.graph.ops().size(), ": ", section, " is there for the whole step"));
      const Region own = op->is("constant", "scalar") ? Region::Constant : Region::State;
      if (b.region != own && b.region != Region::Window)
        note(concat(name, " lies in region ", to_string(b.region), "\n  expected ", to_string(own), ", or window"));
    }
  }

  // At fixed addresses nothing is handed over: what a step leaves lies where the next one reads it.
  void check_carries() {
    for (const ir::Carry& carry : plan_.graph.carries)
      if (!ir::is_in_place(carry))
        note(concat("%", carry.next->name(), " lies elsewhere than %", carry.current->name(),
                    ", as which the next step reads it\n  expected it in the same memory; run the pass keep_in_place"));
  }

  void check_loops() {
    for (const ir::Loop& loop : ir::loops_of(plan_.graph))
      for (size_t k = 0; k < loop.begin->results().size(); ++k) {
        const Value *carried = loop.begin->results()[k].get(), *next = loop.end->operands[k];
        if (!gives(*loop.begin, k, k + 1) || !gives(*loop.end, k, k) || !lies_at(*next, *carried))
          note(concat('%', carried->name(), " and %", next->name(), " of ", ir::name_of(*loop.begin),
                      " may lie in two places\n  expected one, where %", loop.begin->operands[k + 1]->name(),
                      " lies: donates= on the loop, on its end and on what writes %", next->name(), " over %",
                      carried->name()));
      }
  }
  static bool gives(const Op& op, size_t result, size_t operand) {
    const auto donated = ir::donated_operands(op);
    return result < donated.size() && donated[result] == static_cast<int64_t>(operand);
  }
  // Through ops that write over an operand; views do not hand on a place of their own.
  static bool lies_at(const Value& value, const Value& there) {
    for (const Value* at = &value; at != &there;) {
      const Op& op = *at->producer();
      const auto donated = ir::donated_operands(op);
      const auto result = static_cast<size_t>(at->result_index());
      if (ir::is_loop(op) || result >= donated.size()) return false;
      at = op.operands[static_cast<size_t>(donated[result])];
    }
    return true;
  }

  void check_budget() {
    if (options_.prefetch_bytes <= 0) return;
    int64_t bytes = 0;
    std::vector<const Op*> in_flight;  // in the order of their starts
    for (const auto& op : plan_.graph.ops()) {
      if (op->is("all_gather.start")) {
        in_flight.push_back(op.get());
        bytes += op->result()->type().bytes();
        if (bytes - in_flight[0]->result()->type().bytes() > options_.prefetch_bytes)
          note(concat("at %", op->result()->name(), " ", bytes, " bytes of gathers are in flight\n  expected at most ",
                      options_.prefetch_bytes, " besides the first of them"));
      } else if (ir::is_wait(*op) && std::erase(in_flight, op->operands[0]->producer()) > 0) {
        bytes -= op->operands[0]->type().bytes();
      }
    }
  }

  const StepPlan& plan_;
  VerifyOptions options_;
  std::vector<std::string> errors_;
};

}  // namespace

std::vector<std::string> verify_plan(const StepPlan& plan, const VerifyOptions& options) {
  return Verifier(plan, options).run();
}

}  // namespace sfsdp::plan
