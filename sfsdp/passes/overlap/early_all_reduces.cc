// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/overlap/early_all_reduces.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/index.h"
#include "sfsdp/ir/moves.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/side_table.h"
#include "sfsdp/passes/overlap/split_collectives.h"

namespace sfsdp::passes {
namespace {

using ir::Graph, ir::Op, ir::Section, ir::Value;

bool in_tail(const Op& op) { return op.section == Section::Clip || op.section == Section::Opt; }
bool in_body(const Op& op) { return ir::is_repeated(op.section); }
bool is_whole_collective(const Op& op) { return ir::is_collective(op) && !ir::is_start(op); }

// What an op of the tail has to wait for there.
struct TailWait {
  const Op* by = nullptr;  // a wait, or a blocking collective; nullptr: nothing
  bool by_several = false;
};

ir::OpTable<TailWait> find_tail_waits(const Graph& graph) {
  ir::OpTable<TailWait> waits(graph);
  for (const auto& op : graph.ops()) {
    if (!in_tail(*op)) continue;
    TailWait h;
    const auto add = [&](const TailWait& other) {
      h.by_several |= other.by_several || (h.by && other.by && h.by != other.by);
      if (other.by) h.by = other.by;
    };
    for (const Value* operand : op->operands)
      if (operand) add(waits[operand->producer()]);
    if (ir::is_wait(*op) || is_whole_collective(*op)) add({op.get(), false});
    waits[op.get()] = h;
  }
  return waits;
}

// What updates read, through all that lies between.
ir::OpTable<char> needed_by_updates(const Graph& graph) {
  ir::OpTable<char> needed(graph);
  for (const ir::Carry& carry : graph.carries) needed[carry.next->producer()] = 1;
  for (size_t i = graph.ops().size(); i-- > 0;) {
    const Op& op = *graph.ops()[i];
    if (!needed[&op]) continue;
    for (const Value* operand : op.operands)
      if (operand) needed[operand->producer()] = 1;
  }
  return needed;
}

// Blocking collectives of the tail that can start before what else the tail waits for, or that no update waits for.
std::vector<Op*> find_blocking(const Graph& graph) {
  const auto waits = find_tail_waits(graph);
  const auto needed = needed_by_updates(graph);
  std::vector<Op*> blocking;
  for (const auto& op : graph.ops()) {
    if (!in_tail(*op) || !is_whole_collective(*op)) continue;
    const TailWait& h = waits[op.get()];
    if ((h.by == op.get() && !h.by_several) || !needed[op.get()]) blocking.push_back(op.get());
  }
  return blocking;
}

// Starts of the tail that read what the body leaves, packed or not, to stand right after it; of several micro-batches
// in the last.
bool start_in_body(Graph& graph, PassContext& ctx) {
  ir::Moves moves(graph);
  const ir::Index index(graph);
  int64_t starts = 0;
  std::vector<std::pair<Op*, Section>> moved;
  for (const auto& op : graph.ops()) {
    if (!ir::is_start(*op) || !in_tail(*op)) continue;
    std::vector<Op*> group = {op.get()};
    Op* const pack = op->operands[0]->producer();
    if (pack->is("pack") && in_tail(*pack) && index.only_reader(pack->result())) group.insert(group.begin(), pack);
    const auto& read = group[0]->operands;
    if (!std::ranges::all_of(read, [](const Value* v) { return in_body(*v->producer()); })) continue;
    const Value* last =
        *std::ranges::max_element(read, {}, [&](const Value* v) { return index.position(v->producer()); });
    moves.after(last->producer(), group);
    for (Op* member : group) moved.emplace_back(member, last->producer()->section);
    ++starts;
  }
  moves.apply();
  for (const auto& [op, section] : moved) {
    op->section = section;
    const bool reads_once =
        std::ranges::any_of(op->operands, [](const Value* v) { return ir::is_once(*v->producer()); });
    if (graph.micro_batches > 1 || reads_once) op->attrs["once"] = true;
  }
  ctx.metrics.add("started_in_body", starts);
  return starts > 0;
}

class TailOrder {
 public:
  explicit TailOrder(Graph& graph)
      : graph_(graph),
        tail_waits_(find_tail_waits(graph)),
        needed_(needed_by_updates(graph)),
        index_(graph),
        place_(graph, kNowhere),
        readers_(graph),
        emitted_(graph) {}

  bool apply(PassContext& ctx) {
    std::vector<Op*> tail;
    for (const auto& op : graph_.ops()) (in_tail(*op) ? tail : order_).push_back(op.get());
    for (Op* op : tail) {
      for (const Value* operand : op->operands)
        if (operand) readers_[ir::storage_of(operand)].push_back(op);
      if (ir::is_wait(*op)) readers_[ir::storage_of(op->operands[0]->producer()->operands[0])].push_back(op);
    }
    start_all(tail);
    const std::vector<Op*> gradients = find_gradients(tail);
    for (Op* gradient : gradients) {
      emit(gradient);
      const std::vector<Op*> updates = free_updates(*gradient);
      if (gradient == gradients.back() && !updates.empty())  // the norm's all-reduce runs under the last update
        for (Op* op : tail)
          if (ir::is_start(*op)) emit(op);
      for (Op* update : updates) emit(update);
      ctx.metrics.add("free_updates", static_cast<int64_t>(updates.size()));
    }
    for (Op* gradient : gradients)
      for (Op* update : updates_of(*gradient)) emit(update);
    for (Op* op : tail)
      if (needed_[op]) emit(op);
    for (Op* op : tail) emit(op);
    return graph_.set_order(order_);
  }

 private:
  // With all that it reads in the tail and that is not there yet, and after what reads a buffer that it takes over.
  void emit(Op* op) {
    if (!in_tail(*op) || emitted_[op]) return;
    emitted_[op] = 1;
    for (Value* operand : op->operands)
      if (operand) emit(operand->producer());
    for (const int64_t taken : ir::donated_operands(*op))
      for (Op* reader : readers_[ir::storage_of(op->operands[static_cast<size_t>(taken)])])
        if (index_.position(reader) < index_.position(op)) emit(reader);
    order_.push_back(op);
  }

  // Everything that can start at once, in the order in which the body leaves what is sent.
  void start_all(const std::vector<Op*>& tail) {
    std::vector<Op*> starts;
    for (Op* op : tail)
      if (ir::is_start(*op) && !tail_waits_[op].by) starts.push_back(op);
    std::ranges::stable_sort(starts, {}, [&](const Op* op) {
      const Op* from = op->operands[0]->producer();
      return in_tail(*from) ? graph_.ops().size() : index_.position(from);
    });
    for (Op* start : starts) emit(start);
    for (size_t i = 0; i < order_.size(); ++i) place_[order_[i]] = i;
  }

  // By what is waited for: where it starts. A gradient that is there already comes before all that are waited for.
  std::vector<Op*> find_gradients(const std::vector<Op*>& tail) const {
    std::vector<std::pair<size_t, Op*>> found;
    for (Op* op : tail) {
      if (!op->is("gradient")) continue;
      const Op* by = tail_waits_[op].by;
      if (by && ir::is_wait(*by)) by = by->operands[0]->producer();
      const Op* from = op;
      while (!by && in_tail(*from)) from = from->operands[0]->producer();
      found.emplace_back(by ? place_of(*by) + order_.size() : place_of(*from), op);
    }
    std::ranges::stable_sort(found, {}, [](const auto& entry) { return entry.first; });
    std::vector<Op*> gradients;
    for (const auto& [place, op] : found) gradients.push_back(op);
    return gradients;
  }
  size_t place_of(const Op& op) const {
    return place_[&op] == kNowhere ? order_.size() + index_.position(&op) : place_[&op];
  }

  // Ops of the optimizer that read the gradient, clipped or not.
  std::vector<Op*> updates_of(const Op& gradient) const {
    std::vector<Op*> updates;
    for (Op* reader : index_.readers(gradient.result())) {
      if (reader->section == Section::Opt) updates.push_back(reader);
      if (!reader->is("scale")) continue;
      for (Op* update : index_.readers(reader->result()))
        if (update->section == Section::Opt) updates.push_back(update);
    }
    return updates;
  }

  // Those that wait for nothing but the gradient, and read no other.
  std::vector<Op*> free_updates(const Op& gradient) const {
    std::vector<Op*> updates = updates_of(gradient);
    std::erase_if(updates, [&](const Op* update) {
      return tail_waits_[update].by_several || tail_waits_[update].by != tail_waits_[&gradient].by ||
             reads_norm(*update);
    });
    return updates;
  }
  // Where no gradient is waited for in the tail, the norm can be without a wait too.
  bool reads_norm(const Op& op) const {
    return std::ranges::any_of(op.operands, [&](const Value* v) {
      if (!v || !in_tail(*v->producer()) || v->producer()->is("gradient")) return false;
      return v->producer()->is("sum_squares") || reads_norm(*v->producer());
    });
  }

  static constexpr size_t kNowhere = std::numeric_limits<size_t>::max();
  Graph& graph_;
  const ir::OpTable<TailWait> tail_waits_;
  const ir::OpTable<char> needed_;
  const ir::Index index_;      // of the graph as it was
  ir::OpTable<size_t> place_;  // in the new order
  // Ops of the tail, by the memory that they read; a wait reads what its start sends.
  ir::ValueTable<std::vector<Op*>> readers_;
  ir::OpTable<char> emitted_;
  std::vector<Op*> order_;
};

void check_started(const Graph& graph) {
  SFSDP_CHECK(find_blocking(graph).empty(), "a collective of the tail still blocks: %",
              find_blocking(graph)[0]->result()->name());
  for (const auto& op : graph.ops())
    SFSDP_CHECK(!in_tail(*op) || !ir::is_start(*op) || !in_body(*op->operands[0]->producer()), '%',
                op->result()->name(), " does not start where its operand is there");
}

}  // namespace

bool early_all_reduces(Graph& graph, PassContext& ctx) {
  const bool updates = std::ranges::any_of(graph.ops(), [](const auto& op) { return op->section == Section::Opt; });
  if (!updates) return false;
  const std::vector<Op*> blocking = find_blocking(graph);
  split_blocking(graph, blocking);
  ctx.metrics.add("split", static_cast<int64_t>(blocking.size()));
  bool changed = !blocking.empty();
  changed |= start_in_body(graph, ctx);
  changed |= TailOrder(graph).apply(ctx);
  check_started(graph);
  return changed;
}

}  // namespace sfsdp::passes
