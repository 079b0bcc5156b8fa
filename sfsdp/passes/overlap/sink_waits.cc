// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/overlap/sink_waits.h"

#include <algorithm>
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
  Op* filled = nullptr;  // from here on what it sends has memory: its pack, or the start itself
  std::vector<Op*> wait;
  const Op* param = nullptr;  // whose gradient it is, where a gradient op says so
};

// What backward does with a reduced value but keep it: views of it, sums over micro-batches, casts.
//   returns whether it computes with it
bool follow(const ir::Index& index, const Value* value, std::vector<Op*>& kept) {
  bool needed = false;
  for (Op* reader : index.readers(value)) {
    if (reader->section != Section::Bwd) continue;
    if (ir::is_wait(*reader) || reader->is("view") || reader->is("accumulate") || reader->is("cast")) {
      kept.push_back(reader);
      needed |= follow(index, reader->result(), kept);
    } else {
      needed = true;
    }
  }
  return needed;
}

std::vector<Reduction> find_reductions(const Graph& graph) {
  const ir::Index index(graph);
  std::vector<Reduction> reductions;
  for (const auto& op : graph.ops()) {
    if (op->section != Section::Bwd || (!op->is("reduce_scatter.start") && !op->is("all_reduce.start"))) continue;
    Reduction r;
    r.start = r.filled = op.get();
    if (Op* sent = op->operands[0]->producer(); sent->is("pack") && sent->section == Section::Bwd) r.filled = sent;
    // What backward goes on to compute with (a sum that is needed for the next gradient) is waited for at once.
    const bool needed = follow(index, op->result(), r.wait);
    r.param = param_of_gradient(graph, index, op->result());
    if (!needed && !r.wait.empty()) reductions.push_back(std::move(r));
  }
  return reductions;
}

}  // namespace

const std::vector<Field<SinkWaitsOptions>>& SinkWaitsOptions::fields() {
  static const std::vector<Field<SinkWaitsOptions>> kFields = {
      field("depth", &SinkWaitsOptions::depth, {0, 1000}, "reductions in flight; 0: none"),
      field("next", &SinkWaitsOptions::next, side_words(), "before or after that start")};
  return kFields;
}

bool sink_waits(Graph& graph, const SinkWaitsOptions& options, PassContext& ctx) {
  const std::vector<Reduction> reductions = find_reductions(graph);
  const UnitSchedule fallback = {.sink_depth = options.depth, .sink = options.next};
  ir::Moves moves(graph);
  std::vector<Op*> at_end;
  for (size_t i = 0; i < reductions.size(); ++i) {
    const Reduction& r = reductions[i];
    const UnitSchedule unit = read_schedule(r.param, fallback);
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
  return moves.apply();
}

}  // namespace sfsdp::passes
