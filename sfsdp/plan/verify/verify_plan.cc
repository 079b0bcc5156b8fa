// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/verify/verify_plan.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/mesh/device_mesh.h"
#include "sfsdp/plan/offsets.h"
#include "sfsdp/plan/verify/axis_states.h"
#include "sfsdp/plan/verify/kernels.h"
#include "sfsdp/plan/verify/rendezvous.h"

namespace sfsdp::plan {
namespace {

using ir::Graph, ir::Op, ir::Value;

class Verifier {
 public:
  Verifier(const StepPlan& plan, const VerifyOptions& options) : plan_(plan), options_(options) {}

  std::vector<std::string> run() {
    for (const ir::Diagnostic& d : ir::verify(plan_.graph)) errors_.push_back(concat(d));
    if (!errors_.empty()) return errors_;  // the rest would walk over a broken graph
    check_lanes();
    note(check_rendezvous(DeviceMesh(plan_.graph.mesh), [&](int64_t) -> const Graph& { return plan_.graph; }));
    note(check_axis_states(plan_.graph));
    note(check_kernels(plan_.graph));
    check_memory();
    check_budget();
    return errors_;
  }

 private:
  void note(const std::string& error) {
    if (!error.empty()) errors_.push_back(error);
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

  void check_memory() {
    const MemoryPlan& m = plan_.memory;
    std::unordered_map<const Value*, const Buffer*> planned;
    for (const Buffer& b : m.buffers)
      if (!planned.emplace(b.value, &b).second) note(concat("%", b.value->name(), " has two buffers\n  expected one"));
    const auto needed = find_buffers(plan_.graph, {.alignment = plan_.alignment});
    for (const Buffer& b : needed) {
      const auto found = planned.find(b.value);
      const std::string name = concat("%", b.value->name());
      if (found == planned.end()) {
        note(concat(name, " has no place in memory\n  expected a buffer of ", b.bytes, " bytes"));
        continue;
      }
      const Buffer& p = *found->second;
      if (p.bytes != b.bytes) note(concat(name, " has a buffer of ", p.bytes, " bytes\n  expected ", b.bytes));
      if (p.first != b.first || p.last != b.last)
        note(concat(name, " is kept from op ", p.first, " to op ", p.last, "\n  expected ", b.first, " to ", b.last,
                    ": from the op that makes it to the last that reads it"));
      planned.erase(found);
    }
    for (const auto& [value, buffer] : planned)
      note(concat("%", value->name(),
                  " has a buffer and needs none\n  expected none for state, views and what stays inside a kernel"));
    note(check_memory_plan(m, plan_.alignment));
    const Peak peak = live_peak(m.buffers);
    const auto compare = [&](const char* what, int64_t got, int64_t expected) {
      if (got != expected) note(concat(what, " = ", got, "\n  expected ", expected));
    };
    compare("state_bytes", m.state_bytes, state_bytes(plan_.graph, plan_.alignment));
    compare("live_bytes", m.live_bytes, peak.bytes);
    compare("peak_position", m.peak_position, peak.position);
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
