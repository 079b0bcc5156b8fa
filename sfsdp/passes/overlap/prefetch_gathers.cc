// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/overlap/prefetch_gathers.h"

#include <algorithm>
#include <map>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/moves.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/passes/overlap/schedule_attrs.h"

namespace sfsdp::passes {
namespace {

using ir::Graph, ir::Op, ir::Section, ir::Value;

// A gather's first half with what it alone needs (casts of the shards, their pack), and its second half.
struct Gather {
  std::vector<Op*> start;  // in order, the collective last
  Op* wait = nullptr;
  const Op* param = nullptr;  // that is gathered; nullptr: something else that is given to the graph
  int64_t bytes = 0;
};

// Adds what makes `value` out of what is given to the graph and is read by nothing else; false: something else does.
bool add_own(const Graph::Uses& uses, const Value* value, std::vector<Op*>& own) {
  Op* op = value->producer();
  if (ir::is_root(*op)) return true;
  if ((!op->is("cast") && !op->is("pack")) || uses.at(value).size() != 1) return false;
  for (const Value* operand : op->operands)
    if (!add_own(uses, operand, own)) return false;
  own.push_back(op);
  return true;
}

// Gathers of a section whose shard is given to the graph, in order. Others (of activations) stay where they are.
std::vector<Gather> find_gathers(const Graph& graph, Section section) {
  const auto uses = graph.uses();
  std::vector<Gather> gathers;
  for (const auto& op : graph.ops()) {
    if (!op->is("all_gather.start") || op->section != section) continue;
    Gather g;
    if (!add_own(uses, op->operands[0], g.start)) continue;
    g.start.push_back(op.get());
    const auto readers = uses.find(op->result());
    if (readers == uses.end() || readers->second.size() != 1 || !ir::is_wait(*readers->second[0])) continue;
    g.wait = readers->second[0];
    const Op* given = g.start[0]->operands[0]->producer();
    if (given->is("param")) g.param = given;
    g.bytes = op->result()->type().bytes();
    gathers.push_back(std::move(g));
  }
  return gathers;
}

bool is_before(const std::string& section, const std::string& variant) {
  if (variant != "before" && variant != "after")
    throw UserError(concat("prefetch_gathers ", section, "=", variant, "\n  expected before or after"));
  return variant == "before";
}

}  // namespace

bool prefetch_gathers(Graph& graph, const PrefetchGathersOptions& options, PassContext& ctx) {
  const std::map<Section, bool> before = {{Section::Fwd, is_before("forward", options.forward)},
                                          {Section::Bwd, is_before("backward", options.backward)}};
  ir::Moves moves(graph);
  const auto is_backward = [](const auto& op) { return op->section == Section::Bwd; };
  const auto begin = std::ranges::find_if(graph.ops(), is_backward);
  const Op* const first_backward = begin == graph.ops().end() ? nullptr : begin->get();
  for (const auto& [section, goes_before] : before) {
    const std::vector<Gather> gathers = find_gathers(graph, section);
    for (size_t i = 0; i < gathers.size(); ++i) {
      const std::string name(section == Section::Fwd ? "forward" : "backward");
      const auto depth = static_cast<size_t>(schedule_attr(gathers[i].param, name + "_depth", options.depth));
      size_t target = i - std::min(i, depth);
      const auto in_flight = [&] {
        int64_t bytes = 0;
        for (size_t k = target + 1; k <= i; ++k) bytes += gathers[k].bytes;
        return bytes;
      };
      while (options.max_bytes > 0 && target < i && in_flight() > options.max_bytes) {
        ++target;
        ctx.metrics.add("held_back_by_bytes", 1);
      }
      if (i == 0 && depth > 0 && section == Section::Bwd && gathers[0].start[0] != first_backward) {
        moves.before(first_backward, gathers[0].start);
        ctx.metrics.add("prefetched", 1);
      }
      if (target == i) continue;
      if (schedule_attr(gathers[i].param, name + "_before", goes_before))
        moves.before(gathers[target].wait, gathers[i].start);
      else
        moves.behind(gathers[target].wait, gathers[i].start);
      ctx.metrics.add("prefetched", 1);
    }
  }
  return moves.apply();
}

}  // namespace sfsdp::passes
