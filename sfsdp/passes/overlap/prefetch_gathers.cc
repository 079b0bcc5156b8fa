// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/overlap/prefetch_gathers.h"

#include <algorithm>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/index.h"
#include "sfsdp/ir/moves.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/passes/overlap/schedule.h"

namespace sfsdp::passes {
namespace {

using ir::Graph, ir::Op, ir::Section, ir::Value;

// A gather's first half with what it alone needs (casts of the shards, their pack), and its second half.
struct Gather {
  std::vector<Op*> start;  // in order, the collective last
  const Op* wait = nullptr;
  const Op* param = nullptr;  // that is gathered; nullptr: something else that is given to the graph
  int64_t bytes = 0;
};

// Adds what makes `value` out of what is given to the graph and is read by nothing else; false: something else does.
bool add_own(const ir::Index& index, const Value* value, std::vector<Op*>& own) {
  Op* op = value->producer();
  if (ir::is_root(*op)) return true;
  if ((!op->is("cast") && !op->is("pack")) || index.readers(value).size() != 1) return false;
  for (const Value* operand : op->operands)
    if (!add_own(index, operand, own)) return false;
  own.push_back(op);
  return true;
}

// Gathers of a section whose shard is given to the graph, in the order in which they are waited for. Others (of activations)
// stay where they are, and are counted.
std::vector<Gather> find_gathers(const Graph& graph, const ir::Index& index, Section section, PassContext& ctx) {
  std::vector<Gather> gathers;
  for (const auto& op : graph.ops()) {
    if (!op->is("all_gather.start") || op->section != section) continue;
    Gather g;
    const Op* wait = index.only_reader(op->result());
    if (!wait || !ir::is_wait(*wait) || !add_own(index, op->operands[0], g.start)) {
      ctx.metrics.add("left_alone", 1);
      continue;
    }
    g.start.push_back(op.get());
    g.wait = wait;
    const Op* given = g.start[0]->operands[0]->producer();
    if (given->is("param")) g.param = given;
    g.bytes = op->result()->type().bytes();
    gathers.push_back(std::move(g));
  }
  std::ranges::stable_sort(gathers, {}, [&](const Gather& g) { return index.position(g.wait); });
  return gathers;
}

}  // namespace

const std::vector<Field<PrefetchGathersOptions>>& PrefetchGathersOptions::fields() {
  static const std::vector<Field<PrefetchGathersOptions>> kFields = {
      field("depth", &PrefetchGathersOptions::depth, {0, 1000}, "units ahead; 0: none"),
      field("forward", &PrefetchGathersOptions::forward, side_words(), "before or after the wait of that unit"),
      field("backward", &PrefetchGathersOptions::backward, side_words(), "likewise"),
      field("max_bytes", &PrefetchGathersOptions::max_bytes, {0, 1e15},
            "of gathers in flight at once, besides one; 0: no bound")};
  return kFields;
}

bool prefetch_gathers(Graph& graph, const PrefetchGathersOptions& options, PassContext& ctx) {
  const UnitSchedule fallback = {.forward_depth = options.depth,
                                 .backward_depth = options.depth,
                                 .forward = options.forward,
                                 .backward = options.backward};
  const auto backward = std::ranges::find(graph.ops(), Section::Bwd, [](const auto& op) { return op->section; });
  const Op* const first_backward = backward == graph.ops().end() ? nullptr : backward->get();
  const ir::Index index(graph);
  ir::Moves moves(graph);
  for (const Section section : {Section::Fwd, Section::Bwd}) {
    const std::vector<Gather> gathers = find_gathers(graph, index, section, ctx);
    const auto bytes = [&](size_t k) { return gathers[k].bytes; };
    for (size_t i = 0; i < gathers.size(); ++i) {
      const UnitSchedule unit = read_schedule(gathers[i].param, fallback);
      const bool forward = section == Section::Fwd;
      const int64_t depth = forward ? unit.forward_depth : unit.backward_depth;
      const Place place = gather_place(i, depth, forward ? unit.forward : unit.backward, options.max_bytes, bytes);
      const bool begins = !forward && starts_with_backward(i, depth) && gathers[0].start[0] != first_backward;
      if (begins) moves.before(first_backward, gathers[0].start);
      if (place.where == Place::Where::Moves) {
        const Op* wait = gathers[place.target].wait;
        place.side == Side::Before ? moves.before(wait, gathers[i].start) : moves.after(wait, gathers[i].start);
      }
      if (begins || place.where == Place::Where::Moves) ctx.metrics.add("prefetched", 1);
      const size_t wanted = i - std::min(i, static_cast<size_t>(depth));
      if (options.max_bytes > 0)
        ctx.metrics.add("held_back_by_bytes",
                        static_cast<int64_t>((place.where == Place::Where::Moves ? place.target : i) - wanted));
    }
  }
  return moves.apply();
}

}  // namespace sfsdp::passes
