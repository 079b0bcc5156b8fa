// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/overlap/prefetch_gathers.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/index.h"
#include "sfsdp/ir/moves.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/passes/analysis/own_start.h"
#include "sfsdp/passes/overlap/schedule.h"

namespace sfsdp::passes {
namespace {

using ir::Graph, ir::Op, ir::Section;

// A gather's first half with what it alone needs (casts of the shards, their pack), and its second half.
struct Gather {
  std::vector<Op*> start;  // in order, the collective last
  const Op* wait = nullptr;
  const Op* param = nullptr;  // that is gathered; nullptr: something else that is given to the graph
  int64_t bytes = 0;
};

// Gathers of a section whose shard is given to the graph, in the order in which they are waited for. Others (of activations)
// stay where they are, and are counted.
std::vector<Gather> find_gathers(const Graph& graph, const ir::Index& index, Section section, Metrics& metrics) {
  std::vector<Gather> gathers;
  for (const auto& op : graph.ops()) {
    if (!op->is("all_gather.start") || op->section != section) continue;
    Gather g;
    const Op* wait = index.only_reader(op->result());
    if (!wait || !ir::is_wait(*wait) || !add_own(index, op->operands[0], g.start)) {
      metrics.add("left_alone", 1);
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

// Before the first op of backward that stays where it is, unless it stands there already.
void start_with_backward(const Graph& graph, const Gather& first, ir::Moves& moves, PassContext& ctx) {
  for (const auto& op : graph.ops()) {
    if (op.get() == first.start.back()) return;
    if (op->section != Section::Bwd || moves.contains(op.get())) continue;
    if (std::ranges::find(first.start, op.get()) != first.start.end()) continue;
    moves.before(op.get(), first.start);
    ctx.metrics.add("prefetched", 1);
    return;
  }
}

UnitSchedule fallback_of(const PrefetchGathersOptions& options) {
  return {.forward_depth = options.depth,
          .backward_depth = options.depth,
          .forward = options.forward,
          .backward = options.backward};
}

// The gathers of one section as they stand: what lies between each start and the wait that it was moved to.
class Checker {
 public:
  Checker(const Graph& graph, const ir::Index& index, Section section, const PrefetchGathersOptions& options)
      : index_(index), section_(section), options_(options) {
    Metrics uncounted;
    for (const Section any : {Section::Fwd, Section::Bwd}) {
      const std::vector<Gather> found = find_gathers(graph, index, any, uncounted);
      for (const Gather& g : found) starts_.insert(g.start.begin(), g.start.end());
      if (any == section) gathers_ = found;
    }
    for (size_t i = 0; i < gathers_.size(); ++i) waits_[gathers_[i].wait] = i;
  }

  void check() const {
    const bool forward = section_ == Section::Fwd;
    for (size_t i = 0; i < gathers_.size(); ++i) {
      const UnitSchedule unit = read_schedule(gathers_[i].param, fallback_of(options_));
      const auto depth = static_cast<size_t>(forward ? unit.forward_depth : unit.backward_depth);
      if (i > 0 && depth > 0) check_ahead(i, depth, forward ? unit.forward : unit.backward);
      if (i == 0 && depth > 0 && !forward) check_first();
    }
  }

 private:
  // The first op before or after the start that is not itself part of one.
  const Op* neighbour(const Gather& g, Side side) const {
    size_t at = index_.position(side == Side::Before ? g.start.back() : g.start.front());
    while (at < index_.size() && starts_.contains(index_.at(at))) side == Side::Before ? ++at : --at;  // 0 - 1: no op
    return at < index_.size() ? index_.at(at) : nullptr;
  }

  void check_ahead(size_t i, size_t depth, Side side) const {
    if (options_.max_bytes > 0 && gathers_[i].bytes > options_.max_bytes) return;  // stays where it is needed
    const auto wait = waits_.find(neighbour(gathers_[i], side));
    const auto name = [&] { return concat("prefetch_gathers: %", gathers_[i].start.back()->result()->name()); };
    const size_t target = wait == waits_.end() ? i : std::min(wait->second, i);  // i: where it is needed
    int64_t in_flight = 0;
    for (size_t k = target + 1; k <= i; ++k) in_flight += gathers_[k].bytes;
    SFSDP_CHECK(i - target <= depth, name(), " starts ", i - target, " gathers ahead of ", depth);
    SFSDP_CHECK(options_.max_bytes == 0 || in_flight <= options_.max_bytes, name(), " makes ", in_flight,
                " bytes in flight of at most ", options_.max_bytes);
    const bool earlier = options_.max_bytes == 0 || in_flight + gathers_[target].bytes <= options_.max_bytes;
    SFSDP_CHECK(i - target == std::min(i, depth) || !earlier, name(), " starts ", i - target,
                " gathers ahead; could start ", std::min(i, depth));
  }

  void check_first() const {
    for (size_t at = 0; index_.at(at) != gathers_[0].start.back(); ++at)
      SFSDP_CHECK(index_.at(at)->section != Section::Bwd || starts_.contains(index_.at(at)), "prefetch_gathers: %",
                  gathers_[0].start.back()->result()->name(), ", the first of backward, starts after ",
                  index_.at(at)->opcode);
  }

  const ir::Index& index_;
  const Section section_;
  const PrefetchGathersOptions& options_;
  std::vector<Gather> gathers_;
  std::unordered_set<const Op*> starts_;         // of both sections: some go to one place
  std::unordered_map<const Op*, size_t> waits_;  // which gather's
};

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

void expect_prefetched(const Graph& graph, const PrefetchGathersOptions& options) {
  const ir::Index index(graph);
  for (const Section section : {Section::Fwd, Section::Bwd}) Checker(graph, index, section, options).check();
}

bool prefetch_gathers(Graph& graph, const PrefetchGathersOptions& options, PassContext& ctx) {
  const ir::Index index(graph);
  ir::Moves moves(graph);
  for (const Section section : {Section::Fwd, Section::Bwd}) {
    const std::vector<Gather> gathers = find_gathers(graph, index, section, ctx.metrics);
    const auto bytes = [&](size_t k) { return gathers[k].bytes; };
    bool begins = false;  // the first of backward, where backward begins
    for (size_t i = 0; i < gathers.size(); ++i) {
      const UnitSchedule unit = read_schedule(gathers[i].param, fallback_of(options));
      const bool forward = section == Section::Fwd;
      const int64_t depth = forward ? unit.forward_depth : unit.backward_depth;
      const Place place = gather_place(i, depth, forward ? unit.forward : unit.backward, options.max_bytes, bytes);
      begins |= !forward && starts_with_backward(i, depth);
      if (place.where == Place::Where::Moves) {
        const Op* wait = gathers[place.target].wait;
        place.side == Side::Before ? moves.before(wait, gathers[i].start) : moves.after(wait, gathers[i].start);
        ctx.metrics.add("prefetched", 1);
      }
      const size_t wanted = i - std::min(i, static_cast<size_t>(depth));
      if (options.max_bytes > 0)
        ctx.metrics.add("held_back_by_bytes",
                        static_cast<int64_t>((place.where == Place::Where::Moves ? place.target : i) - wanted));
    }
    if (begins) start_with_backward(graph, gathers[0], moves, ctx);
  }
  const bool changed = moves.apply();
  expect_prefetched(graph, options);
  return changed;
}

}  // namespace sfsdp::passes
