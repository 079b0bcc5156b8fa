// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/prefetch_gathers.h"

#include <algorithm>
#include <map>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/moves.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::passes {
namespace {

using ir::Graph, ir::Op, ir::Section, ir::Value;

// A gather's first half with what it alone needs (the cast of the shard), and its second half.
struct Gather {
  std::vector<Op*> start;  // in order, the collective last
  Op* wait = nullptr;
  int64_t bytes = 0;
};

bool is_given(const Value* value) { return ir::is_root(*value->producer()); }

// Gathers of a section whose shard is given to the graph, in order. Others (of activations) stay where they are.
std::vector<Gather> find_gathers(const Graph& graph, Section section) {
  const auto uses = graph.uses();
  std::vector<Gather> gathers;
  for (const auto& op : graph.ops()) {
    if (!op->is("all_gather.start") || op->section != section) continue;
    Gather g;
    const Value* from = op->operands[0];
    Op* cast = from->producer();
    if (cast->is("cast") && uses.at(from).size() == 1 && is_given(cast->operands[0]))
      g.start.push_back(cast);
    else if (!is_given(from))
      continue;
    g.start.push_back(op.get());
    const auto readers = uses.find(op->result());
    if (readers == uses.end() || readers->second.size() != 1 || !ir::is_wait(*readers->second[0])) continue;
    g.wait = readers->second[0];
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
  for (const auto& [section, goes_before] : before) {
    const std::vector<Gather> gathers = find_gathers(graph, section);
    size_t oldest = 0;  // gathers oldest … i - 1 may be in flight when gather i starts
    for (size_t i = 0; i < gathers.size(); ++i) {
      oldest = std::max(oldest, i - std::min(i, static_cast<size_t>(options.depth)));
      const auto in_flight = [&] {
        int64_t bytes = 0;
        for (size_t k = oldest + 1; k <= i; ++k) bytes += gathers[k].bytes;
        return bytes;
      };
      while (options.max_bytes > 0 && oldest < i && in_flight() > options.max_bytes) {
        ++oldest;
        ctx.metrics.add("held_back_by_bytes", 1);
      }
      if (oldest == i) continue;
      if (goes_before)
        moves.before(gathers[oldest].wait, gathers[i].start);
      else
        moves.behind(gathers[oldest].wait, gathers[i].start);
      ctx.metrics.add("prefetched", 1);
    }
  }
  return moves.apply();
}

}  // namespace sfsdp::passes
