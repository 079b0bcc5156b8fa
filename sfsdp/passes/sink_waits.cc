// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/sink_waits.h"

#include <algorithm>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/moves.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/passes/schedule_attrs.h"

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

// The param whose gradient a reduced value becomes, by way of a reduction over replicas or not; nullptr: none.
const Op* param_of_reduced(const Graph& graph, const Graph::Uses& uses, const Value* value) {
  for (auto readers = uses.find(value); readers != uses.end() && readers->second.size() == 1;
       readers = uses.find(value)) {
    const Op* reader = readers->second[0];
    if (reader->is("gradient")) return graph.find_param(reader->attr<std::string>("param"));
    if (!ir::is_collective(*reader) && !ir::is_wait(*reader) && !reader->is("cast")) break;
    value = reader->result();
  }
  return nullptr;
}

std::vector<Reduction> find_reductions(const Graph& graph) {
  const auto uses = graph.uses();
  std::vector<Reduction> reductions;
  for (const auto& op : graph.ops()) {
    if (op->section != Section::Bwd || (!op->is("reduce_scatter.start") && !op->is("all_reduce.start"))) continue;
    Reduction r;
    r.start = r.filled = op.get();
    if (Op* sent = op->operands[0]->producer(); sent->is("pack") && sent->section == Section::Bwd) r.filled = sent;
    const Value* value = op->result();
    while (true) {
      const auto readers = uses.find(value);
      if (readers == uses.end() || readers->second.size() != 1) break;
      Op* next = readers->second[0];
      if (next->section != Section::Bwd || !(ir::is_wait(*next) || next->is("accumulate") || next->is("cast"))) break;
      r.wait.push_back(next);
      value = next->result();
    }
    // What backward goes on to compute with (a sum that is needed for the next gradient) is waited for at once.
    bool needed = false;
    if (const auto readers = uses.find(value); readers != uses.end())
      for (const Op* reader : readers->second) needed |= reader->section == Section::Bwd;
    r.param = param_of_reduced(graph, uses, value);
    if (!needed && !r.wait.empty()) reductions.push_back(std::move(r));
  }
  return reductions;
}

}  // namespace

bool sink_waits(Graph& graph, const SinkWaitsOptions& options, PassContext& ctx) {
  if (options.next != "before" && options.next != "after")
    throw UserError(concat("sink_waits next=", options.next, "\n  expected before or after"));
  if (options.depth == 0) return false;
  const std::vector<Reduction> reductions = find_reductions(graph);
  ir::Moves moves(graph);
  std::vector<Op*> at_end;
  for (size_t i = 0; i < reductions.size(); ++i) {
    const Reduction& r = reductions[i];
    const size_t next = i + static_cast<size_t>(schedule_attr(r.param, "sink_depth", options.depth));
    if (next >= reductions.size())
      at_end.insert(at_end.end(), r.wait.begin(), r.wait.end());
    else if (schedule_attr(r.param, "sink_before", options.next == "before"))
      moves.before(reductions[next].filled, r.wait);
    else
      moves.behind(reductions[next].start, r.wait);
  }
  const Op* last = nullptr;  // of backward, and not moved
  for (const auto& op : graph.ops())
    if (op->section == Section::Bwd && !moves.contains(op.get()) && std::ranges::find(at_end, op.get()) == at_end.end())
      last = op.get();
  if (last) moves.behind(last, at_end);
  ctx.metrics.add("waits", static_cast<int64_t>(reductions.size()));
  return moves.apply();
}

}  // namespace sfsdp::passes
