// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/overlap/sink_waits.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/moves.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/passes/analysis/param_reads.h"
#include "sfsdp/passes/overlap/schedule.h"

namespace sfsdp::passes {
namespace {

using ir::Graph, ir::Op, ir::Section, ir::Value;

// A reduction's start, and its wait with the ops of backward that do nothing but keep its result.
struct Reduction {
  Op* start = nullptr;
  // From here on what it sends has memory: its pack, if that stands after the start before it, or the start itself.
  Op* filled = nullptr;
  std::vector<Op*> wait;
  const Op* param = nullptr;  // whose gradient it is, where a gradient op says so
};

// What backward does with a reduced value but keep it: views of it, sums over micro-batches, casts.
//   end: of backward, a position; an op of another section that stands before it computes with it too
//   returns whether it computes with it
bool follow(const ir::Index& index, const Value* value, size_t end, std::vector<Op*>& kept) {
  bool needed = false;
  for (Op* reader : index.readers(value)) {
    const bool keeps = reader->is("wait", "view", "accumulate", "cast");
    if (reader->section == Section::Bwd && keeps) {
      kept.push_back(reader);
      needed |= follow(index, reader->result(), end, kept);
    } else {
      needed |= index.position(reader) < end;
    }
  }
  return needed;
}

std::vector<Reduction> find_reductions(const Graph& graph) {
  const ir::Index index(graph);
  const ParamNames params = params_by_name(graph);
  std::vector<Reduction> reductions;
  size_t end = index.size();
  while (end > 0 && index.at(end - 1)->section != Section::Bwd) --end;
  for (const auto& op : graph.ops()) {
    if (op->section != Section::Bwd || (!op->is("reduce_scatter.start") && !op->is("all_reduce.start"))) continue;
    Reduction r;
    r.start = r.filled = op.get();
    Op* const sent = op->operands[0]->producer();
    const bool later = reductions.empty() || index.position(sent) > index.position(reductions.back().start);
    if (sent->is("pack") && sent->section == Section::Bwd && later) r.filled = sent;
    // What backward goes on to compute with (a sum that is needed for the next gradient) is waited for at once.
    const bool needed = follow(index, op->result(), end, r.wait);
    r.param = param_of_gradient(params, index, op->result());
    if (!needed && !r.wait.empty()) reductions.push_back(std::move(r));
  }
  return reductions;
}

UnitSchedule sink_fallback_of(const SinkWaitsOptions& options) {
  return {.sink_depth = options.depth, .sink = options.next};
}

}  // namespace

const std::vector<Field<SinkWaitsOptions>>& SinkWaitsOptions::fields() {
  static const std::vector<Field<SinkWaitsOptions>> kFields = {
      field("depth", &SinkWaitsOptions::depth, {0, 1000}, "reductions in flight; 0: none"),
      field("next", &SinkWaitsOptions::next, side_words(), "before or after that start")};
  return kFields;
}

void expect_sunk(const Graph& graph, const SinkWaitsOptions& options) {
  const std::vector<Reduction> reductions = find_reductions(graph);
  const ir::Index index(graph);
  std::unordered_set<const Op*> sunk;
  for (const Reduction& r : reductions) sunk.insert(r.wait.begin(), r.wait.end());
  for (size_t i = 0; i < reductions.size(); ++i) {
    const UnitSchedule unit = read_schedule(reductions[i].param, sink_fallback_of(options));
    if (unit.sink_depth == 0) continue;
    const size_t next = i + static_cast<size_t>(unit.sink_depth);
    const bool to_end = next >= reductions.size(), before = unit.sink == Side::Before;
    const Op* place = to_end ? nullptr : before ? reductions[next].filled : reductions[next].start;
    size_t at = index.position(before || to_end ? reductions[i].wait.front() : reductions[i].wait.back());
    const auto passes_over = [&](const Op* op) { return sunk.contains(op) || (to_end && op->section != Section::Bwd); };
    while (at < index.size() && passes_over(index.at(at))) before || to_end ? ++at : --at;  // 0 - 1: no op
    const Op* found = at < index.size() ? index.at(at) : nullptr;
    SFSDP_CHECK(found == place, "sink_waits: the wait of %", reductions[i].start->result()->name(), " stands by ",
                found ? found->opcode : "nothing", ", not by ", place ? place->opcode : "the end of backward");
  }
}

bool sink_waits(Graph& graph, const SinkWaitsOptions& options, PassContext& ctx) {
  const std::vector<Reduction> reductions = find_reductions(graph);
  ir::Moves moves(graph);
  std::vector<Op*> at_end;
  for (size_t i = 0; i < reductions.size(); ++i) {
    const Reduction& r = reductions[i];
    const UnitSchedule unit = read_schedule(r.param, sink_fallback_of(options));
    const Place place = wait_place(i, reductions.size(), unit.sink_depth, unit.sink);
    if (place.where == Place::Where::ToEnd)
      at_end.insert(at_end.end(), r.wait.begin(), r.wait.end());
    else if (place.where == Place::Where::Moves && place.side == Side::Before)
      moves.before(reductions[place.target].filled, r.wait);
    else if (place.where == Place::Where::Moves)
      moves.after(reductions[place.target].start, r.wait);
  }
  const Op* last = nullptr;  // of backward, and not moved
  for (const auto& op : graph.ops())
    if (op->section == Section::Bwd && !moves.contains(op.get()) && std::ranges::find(at_end, op.get()) == at_end.end())
      last = op.get();
  if (last) moves.after(last, at_end);
  ctx.metrics.add("waits", static_cast<int64_t>(reductions.size()));
  const bool changed = moves.apply();
  expect_sunk(graph, options);
  return changed;
}

}  // namespace sfsdp::passes
