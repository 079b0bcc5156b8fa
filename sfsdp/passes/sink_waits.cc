// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/sink_waits.h"

#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::passes {
namespace {

using ir::Graph, ir::Op, ir::Section, ir::Value;

// A reduction's start, and its wait with the ops of backward that do nothing but keep its result.
struct Reduction {
  Op* start = nullptr;
  std::vector<Op*> wait;
};

std::vector<Reduction> find_reductions(const Graph& graph) {
  const auto uses = graph.uses();
  std::vector<Reduction> reductions;
  for (const auto& op : graph.ops()) {
    if (op->section != Section::Bwd || (!op->is("reduce_scatter.start") && !op->is("all_reduce.start"))) continue;
    Reduction r;
    r.start = op.get();
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
  const Op* last = nullptr;  // of backward
  for (const auto& op : graph.ops())
    if (op->section == Section::Bwd) last = op.get();
  std::unordered_map<const Op*, std::vector<Op*>> before, behind;
  std::unordered_set<const Op*> moved;
  std::vector<Op*> at_end;
  for (size_t i = 0; i < reductions.size(); ++i) {
    const size_t next = i + static_cast<size_t>(options.depth);
    auto& place = next >= reductions.size()  ? at_end
                  : options.next == "before" ? before[reductions[next].start]
                                             : behind[reductions[next].start];
    place.insert(place.end(), reductions[i].wait.begin(), reductions[i].wait.end());
    moved.insert(reductions[i].wait.begin(), reductions[i].wait.end());
    ctx.metrics.add("waits", 1);
  }
  std::vector<Op*> order;
  const auto put = [&](const auto& places, const Op* at) {
    if (const auto found = places.find(at); found != places.end())
      order.insert(order.end(), found->second.begin(), found->second.end());
  };
  for (const auto& op : graph.ops()) {
    if (!moved.contains(op.get())) {
      put(before, op.get());
      order.push_back(op.get());
      put(behind, op.get());
    }
    if (op.get() == last) order.insert(order.end(), at_end.begin(), at_end.end());
  }
  return graph.set_order(order);
}

}  // namespace sfsdp::passes
