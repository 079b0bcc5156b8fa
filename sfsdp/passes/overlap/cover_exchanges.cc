// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/overlap/cover_exchanges.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "sfsdp/cost/op_shape.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::passes {
namespace {

using ir::Op, ir::Value;

bool may_move(const Op& op) {
  return ir::is_pure(op) && !ir::is_collective(op) && !ir::is_wait(op) && !ir::is_root(op) && !op.is("gradient");
}

bool is_exchange(const Op& op) { return op.is("all_to_all_v.start"); }

class Cover {
 public:
  explicit Cover(const ir::Graph& graph) {
    for (const auto& op : graph.ops()) order_.push_back(op.get());
  }

  void all() {
    std::vector<const Op*> starts;
    for (const Op* op : order_)
      if (is_exchange(*op)) starts.push_back(op);
    for (const Op* start : starts) {
      sink_from_above(*start);
      raise_from_below(*start);
    }
  }

  const std::vector<Op*>& order() const { return order_; }
  int64_t moved() const { return moved_; }

 private:
  using Ops = std::unordered_set<const Op*>;

  size_t position_of(const Op& op) const {
    return static_cast<size_t>(std::ranges::find(order_, &op) - order_.begin());
  }

  static bool is_beside(const Op& op, const Op& start) {
    return op.section == start.section && ir::block_of(op.module_path) == ir::block_of(start.module_path);
  }

  // Collectives and waits end the range: what stands above them may be there to cover them.
  void sink_from_above(const Op& start) {
    const size_t at = position_of(start);
    Ops needed = {&start}, moved;
    size_t first = at;
    while (first > 0) {
      const Op& op = *order_[first - 1];
      if (!is_beside(op, start) || !may_move(op)) break;
      const bool is_needed = std::ranges::any_of(op.results(), [&](const auto& r) { return read_by(needed, *r); });
      (is_needed ? needed : moved).insert(&op);
      --first;
    }
    const auto begin = order_.begin() + static_cast<std::ptrdiff_t>(first);
    if (flops_of(moved) > 0) reorder(begin, order_.begin() + static_cast<std::ptrdiff_t>(at) + 1, moved);
  }

  static bool read_by(const Ops& ops, const Value& value) {
    return std::ranges::any_of(
        ops, [&](const Op* op) { return std::ranges::find(op->operands, &value) != op->operands.end(); });
  }

  void raise_from_below(const Op& start) {
    size_t wait = position_of(start) + 1;
    double flops = 0;  // under it
    for (; !(ir::is_wait(*order_[wait]) && order_[wait]->operands[0] == start.result()); ++wait)
      flops += cost::flops_of(*order_[wait]);
    Ops stays = {order_[wait]};
    std::vector<const Op*> free;
    int64_t exchanges = 1;
    size_t end = wait + 1;
    for (; end < order_.size() && is_beside(*order_[end], start); ++end) {
      const Op& op = *order_[end];
      if (is_exchange(op)) ++exchanges;
      const bool depends = std::ranges::any_of(
          op.operands, [&](const Value* operand) { return operand && stays.contains(operand->producer()); });
      if (depends || !may_move(op))
        stays.insert(&op);
      else
        free.push_back(&op);
    }
    const double share = (flops + flops_of({free.begin(), free.end()})) / static_cast<double>(exchanges);
    Ops moved;
    for (const Op* op : free) {
      const double more = cost::flops_of(*op);
      if (flops + more / 2 > share) break;  // the nearest to the share
      flops += more;
      moved.insert(op);
    }
    Ops others;
    for (size_t i = wait; i < end; ++i)
      if (!moved.contains(order_[i])) others.insert(order_[i]);
    if (flops_of(moved) > 0)
      reorder(order_.begin() + static_cast<std::ptrdiff_t>(wait), order_.begin() + static_cast<std::ptrdiff_t>(end),
              others);
  }

  // Those of the range that are among `last` come after the others.
  void reorder(std::vector<Op*>::iterator begin, std::vector<Op*>::iterator end, const Ops& last) {
    std::stable_partition(begin, end, [&](const Op* op) { return !last.contains(op); });
    ++moved_;
  }

  static double flops_of(const Ops& ops) {
    double flops = 0;
    for (const Op* op : ops) flops += cost::flops_of(*op);
    return flops;
  }

  std::vector<Op*> order_;
  int64_t moved_ = 0;
};

}  // namespace

bool cover_exchanges(ir::Graph& graph, PassContext& ctx) {
  Cover cover(graph);
  cover.all();
  ctx.metrics.add("moved", cover.moved());
  return graph.set_order(cover.order());
}

}  // namespace sfsdp::passes
