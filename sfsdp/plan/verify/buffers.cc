// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/verify/buffers.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/loops.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/view_geometry.h"
#include "sfsdp/mesh/chunk.h"
#include "sfsdp/plan/offsets.h"

namespace sfsdp::plan {
namespace {

using ir::Op, ir::Value;

void check_inside(const StepPlan& plan, const std::vector<Inside>& needed, Notes& note) {
  const auto text = [](const Inside& i) {
    return concat('%', i.value->name(), " inside %", i.host->name(), " at +", i.offset);
  };
  const auto missing = [](const std::vector<Inside>& of, const Inside& i) {
    return std::ranges::find(of, i) == of.end();
  };
  if (plan.memory.inside == needed) return;
  for (const Inside& i : plan.memory.inside)
    if (missing(needed, i)) note(text(i), "\n  expected it elsewhere: it may not lie there");
  for (const Inside& i : needed)
    if (missing(plan.memory.inside, i)) note("nothing lies ", text(i), "\n  expected that");
  if (plan.memory.inside.size() != needed.size() || std::ranges::is_permutation(plan.memory.inside, needed))
    note("what lies inside other buffers is out of order, or twice\n  expected each once, in the graph's order");
}

// Each ends where the last of its buffers does.
void check_regions(const StepPlan& plan, Notes& note) {
  std::array<int64_t, kRegions> ends = {};
  ends[static_cast<size_t>(Region::Io)] = round_up(kHostBytes, plan.target.alignment);
  for (const auto* buffers : {&plan.memory.constants, &plan.memory.state, &plan.memory.buffers})
    for (const Buffer& b : *buffers) {
      int64_t& end = ends[static_cast<size_t>(b.region)];
      end = std::max(end, b.offset + b.bytes);
      if (b.region == Region::Io && b.offset < kHostBytes)
        note('%', b.value->name(), " lies at io ", b.offset, "\n  expected it above the ", kHostBytes,
             " bytes of lr, step, seed and micro_batch");
    }
  for (const UnreadState& u : plan.memory.unread) {
    int64_t& end = ends[static_cast<size_t>(u.region)];
    end = std::max(end, u.offset + u.bytes);
  }
  for (size_t r = 0; r < kRegions; ++r)
    note.compare(concat("region ", to_string(static_cast<Region>(r))), plan.memory.region_bytes[r], ends[r]);
}

// A place for every value that `belongs`, as large as it is in whole units of its region, for the whole step.
template <class Belongs>
void check_kept(const StepPlan& plan, const char* section, const std::vector<Buffer>& buffers, Belongs belongs,
                Notes& note) {
  std::unordered_map<const Value*, const Buffer*> kept;
  for (const Buffer& b : buffers)
    if (!kept.emplace(b.value, &b).second || !belongs(*b.value->producer()))
      note("%", b.value->name(), " in ", section, "\n  expected ",
           buffers.data() == plan.memory.state.data() ? "parameters, moments and counters" : "what the program holds",
           ", each once");
  for (const auto& op : plan.graph.ops()) {
    if (!belongs(*op)) continue;
    const auto found = kept.find(op->result());
    const std::string name = concat('%', op->result()->name());
    const int64_t needed = std::max<int64_t>(op->result()->type().span_bytes(), 1);
    if (found == kept.end()) {
      note(name, " has no place in ", section, "\n  expected ", needed, " bytes of ", section);
      continue;
    }
    const Buffer& b = *found->second;
    const int64_t whole =
        round_up(needed, b.region == Region::Window ? plan.target.window_alignment : plan.target.alignment);
    if (b.bytes != whole) note(name, " has ", b.bytes, " bytes\n  expected ", whole, " bytes of ", section);
    if (b.first != 0 || b.last != std::ssize(plan.graph.ops()) || b.carried)
      note(name, " is kept from op ", b.first, " to op ", b.last, b.carried ? ", carried" : "", "\n  expected 0 to ",
           plan.graph.ops().size(), ": ", section, " is there for the whole step");
    const Region own = op->is("constant", "scalar") ? Region::Constant : Region::State;
    if (b.region != own && b.region != Region::Window)
      note(name, " lies in region ", to_string(b.region), "\n  expected ", to_string(own), ", or window");
  }
}

// At fixed addresses nothing is handed over: what a step leaves lies where the next one reads it.
void check_carries(const StepPlan& plan, Notes& note) {
  for (const ir::Carry& carry : plan.graph.carries)
    if (!ir::is_in_place(carry))
      note("%", carry.next->name(), " lies elsewhere than %", carry.current->name(),
           ", as which the next step reads it\n  expected it in the same memory; run the pass keep_in_place");
}

bool gives(const Op& op, size_t result, size_t operand) {
  const auto donated = ir::donated_operands(op);
  return result < donated.size() && donated[result] == static_cast<int64_t>(operand);
}

// Through ops that write over an operand; views do not hand on a place of their own.
bool lies_at(const Value& value, const Value& there) {
  for (const Value* at = &value; at != &there;) {
    const Op& op = *at->producer();
    const auto donated = ir::donated_operands(op);
    const auto result = static_cast<size_t>(at->result_index());
    if (ir::is_loop(op) || result >= donated.size()) return false;
    at = op.operands[static_cast<size_t>(donated[result])];
  }
  return true;
}

void check_loops(const StepPlan& plan, Notes& note) {
  for (const ir::Loop& loop : ir::loops_of(plan.graph))
    for (size_t k = 0; k < loop.begin->results().size(); ++k) {
      const Value *carried = loop.begin->results()[k].get(), *next = loop.end->operands[k];
      if (!gives(*loop.begin, k, k + 1) || !gives(*loop.end, k, k) || !lies_at(*next, *carried))
        note('%', carried->name(), " and %", next->name(), " of ", ir::name_of(*loop.begin),
             " may lie in two places\n  expected one, where %", loop.begin->operands[k + 1]->name(),
             " lies: donates= on the loop, on its end and on what writes %", next->name(), " over %", carried->name());
    }
}

}  // namespace

void check_buffers(const StepPlan& plan, Notes& note) {
  const MemoryPlan& m = plan.memory;
  std::unordered_map<const Value*, const Buffer*> planned;
  for (const Buffer& b : m.buffers)
    if (!planned.emplace(b.value, &b).second) note("%", b.value->name(), " has two buffers\n  expected one");
  const Lifetimes needed = find_buffers(plan.graph, {.target = plan.target});
  check_inside(plan, needed.inside, note);
  for (const Buffer& b : needed.buffers) {
    const auto found = planned.find(b.value);
    const std::string name = concat("%", b.value->name());
    if (found == planned.end()) {
      note(name, " has no place in memory\n  expected a buffer of ", b.bytes, " bytes");
      continue;
    }
    const Buffer& p = *found->second;
    if (p.bytes != b.bytes) note(name, " has a buffer of ", p.bytes, " bytes\n  expected ", b.bytes);
    if (p.region != b.region) note(name, " lies in region ", to_string(p.region), "\n  expected ", to_string(b.region));
    if (p.first != b.first || p.last != b.last)
      note(name, " is kept from op ", p.first, " to op ", p.last, "\n  expected ", b.first, " to ", b.last,
           ": from the op that makes it to the last that reads it");
    if (p.carried != b.carried)
      note(name, p.carried ? " is carried" : " is not carried", " from one micro-batch to the next\n  expected ",
           b.carried ? "it, as they add up in it" : "that of sums alone");
    planned.erase(found);
  }
  for (const auto& [value, buffer] : planned)
    note("%", value->name(),
         " has a buffer and needs none\n  expected none for state, views and what stays inside a kernel");
  note.add(check_memory_plan(m, plan.target));
  const Peak peak = live_peak(m.buffers);
  check_kept(
      plan, "state", m.state, [](const Op& op) { return op.is("param", "state"); }, note);
  check_kept(
      plan, "what is constant", m.constants, [](const Op& op) { return op.is("constant", "scalar"); }, note);
  check_carries(plan, note);
  check_loops(plan, note);
  check_regions(plan, note);
  note.compare("live_bytes", m.live_bytes, peak.bytes);
  note.compare("peak_position", m.peak_position, peak.position);
}

}  // namespace sfsdp::plan
