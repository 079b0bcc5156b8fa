// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/overlap/cover_permutes.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/index.h"
#include "sfsdp/ir/moves.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/side_table.h"

namespace sfsdp::passes {
namespace {

using ir::Op;
using Ops = std::vector<Op*>;

// A view or a copy, which goes with what it brings into form.
bool is_form(const Op& op) {
  return op.operands.size() == 1 && op.results().size() == 1 &&
         (op.is("aten.clone") || ir::has_flag(op, ir::kReshape) || ir::has_flag(op, ir::kPermute));
}

bool is_attention(const Op& op) {
  const ir::OpRow* row = op.opcode.row();
  return row && row->cost == ir::CostClass::Attention;
}

// Which attention stands above each position, of the same section; nullptr: none.
Ops attention_above(const ir::Index& index) {
  Ops above;
  Op* last = nullptr;
  for (size_t i = 0; i < index.size(); ++i) {
    Op* op = index.at(i);
    above.push_back(last && last->section == op->section ? last : nullptr);
    if (is_attention(*op)) last = op;
  }
  return above;
}

// The start, and the forms below the attention that it alone needs, in order; nullopt: it needs more that stands there.
std::optional<Ops> start_group(const ir::Index& index, Op* start, const Op& attention) {
  Ops group = {start};
  Op* below = start->operands[0]->producer();
  for (; index.position(below) > index.position(&attention); below = below->operands[0]->producer()) {
    if (!is_form(*below)) return std::nullopt;
    group.insert(group.begin(), below);
  }
  return below == &attention ? std::nullopt : std::optional(group);
}

// The wait, and the views that are read of it, in order, up to the first op that computes or sends, whichever of them that reads; that op
// last.
Ops wait_group(const ir::Index& index, Op* wait) {
  Ops group = {wait};
  Op* first = nullptr;
  for (size_t i = 0; i < group.size(); ++i)
    for (Op* reader : index.readers(group[i]->result())) {
      if (is_form(*reader) && !reader->is("aten.clone"))
        group.push_back(reader);
      else if (!first || index.position(reader) < index.position(first))
        first = reader;
    }
  if (!first) return {};
  std::erase_if(group, [&](const Op* op) { return index.position(op) > index.position(first); });
  std::ranges::sort(group, {}, [&](const Op* op) { return index.position(op); });
  group.push_back(first);
  return group;
}

bool is_product(const Op& op) {
  const ir::OpRow* row = op.opcode.row();
  return row && row->cost == ir::CostClass::Product;
}

// Products of these rows whose result is joined with those of other ranks' rows, in order.
Ops products_of(const ir::Index& index, const ir::Value* rows, ir::Section section) {
  Ops products;
  for (Op* op : index.readers(rows)) {
    if (!is_product(*op) || op->operands[0] != rows || op->section != section) continue;
    const Op* reader = index.only_reader(op->result());
    if (reader && reader->is("join_parts")) products.push_back(op);
  }
  return products;
}

// What a rank computes of its own rows, then of those that each permute brings: all products of a step stand together, and the next
// permute starts before them.
class Pipelines {
 public:
  Pipelines(const ir::Index& index, ir::Moves& moves) : index_(index), moves_(moves) {}

  // starts: permutes of one value in one section, in order. Returns how many start before products of other rows.
  int64_t place(const Ops& starts) {
    const ir::Value* own = starts[0]->operands[0];
    Op* before = gather_step(products_of(index_, own, starts[0]->section));
    int64_t early = 0;
    for (Op* start : starts) {
      Op* first = gather_step(products_of(index_, index_.readers(start->result())[0]->result(), start->section));
      if (!first) continue;
      if (before && index_.position(before) < index_.position(first)) {
        moves_.before(before, std::vector{start});
        ++early;
      }
      before = first;
    }
    return early;
  }

 private:
  // After the first one, those of which all else that they read is there. Returns the first; nullptr: there is none.
  Op* gather_step(const Ops& products) {
    if (products.empty()) return nullptr;
    Op* const first = products[0];
    for (size_t i = 1; i < products.size(); ++i) {
      Op* op = products[i];
      const bool is_ready = std::ranges::all_of(op->operands, [&](const ir::Value* operand) {
        return !operand || operand == first->operands[0] ||
               index_.position(operand->producer()) < index_.position(first);
      });
      if (is_ready) moves_.after(first, std::vector{op});
    }
    return first;
  }

  const ir::Index& index_;
  ir::Moves& moves_;
};

// Permutes that bring rows of products, by what is sent and where.
std::vector<Ops> find_pipelines(const ir::Graph& graph, const ir::Index& index) {
  std::vector<Ops> pipelines;
  ir::ValueTable<std::vector<size_t>> sending(
      graph);  // places in `pipelines`, one for each section that sends the value
  for (size_t i = 0; i < index.size(); ++i) {
    Op* const start = index.at(i);
    if (!start->is("permute.start")) continue;
    const Op* wait = index.only_reader(start->result());
    if (!wait || products_of(index, wait->result(), start->section).empty()) continue;
    std::vector<size_t>& known = sending[start->operands[0]];
    const auto found =
        std::ranges::find(known, start->section, [&](size_t place) { return pipelines[place][0]->section; });
    if (found != known.end()) {
      pipelines[*found].push_back(start);
      continue;
    }
    known.push_back(pipelines.size());
    pipelines.push_back({start});
  }
  return pipelines;
}

// A permute, what is waited for of it, and what reads that.
struct Permute {
  Op *start, *reader;
  Ops waited;
};

std::vector<Permute> find_permutes(const ir::Index& index) {
  std::vector<Permute> permutes;
  for (size_t i = 0; i < index.size(); ++i) {
    Op* const start = index.at(i);
    if (!start->is("permute.start")) continue;
    Op* const wait = index.only_reader(start->result());
    SFSDP_CHECK(wait && ir::is_wait(*wait), "cover_permutes: %", start->result()->name(), " is not waited for");
    Ops waited = wait_group(index, wait);
    if (waited.empty() || waited.back()->section != start->section) continue;
    Op* const reader = waited.back();
    waited.pop_back();
    permutes.push_back({start, reader, std::move(waited)});
  }
  return permutes;
}

// Which permute brings what an op waits for, or views; each op is of one permute alone, as it reads one value.
ir::OpTable<const Permute*> permutes_by_waited(const ir::Graph& graph, const std::vector<Permute>& permutes) {
  ir::OpTable<const Permute*> of(graph, nullptr);
  for (const Permute& permute : permutes)
    for (const Op* op : permute.waited) of[op] = &permute;
  return of;
}

}  // namespace

bool cover_permutes(ir::Graph& graph, PassContext& ctx) {
  const ir::Index index(graph);
  const Ops above = attention_above(index);
  const std::vector<Permute> permutes = find_permutes(index);
  const ir::OpTable<const Permute*> by_waited = permutes_by_waited(graph, permutes);
  ir::Moves moves(graph);
  Pipelines pipelines(index, moves);
  for (const Ops& starts : find_pipelines(graph, index))
    if (const int64_t early = pipelines.place(starts); early > 0) ctx.metrics.add("started_early", early);
  for (const Permute& permute : permutes) {  // starts before waits, where both stand before one attention
    Op* const before = is_attention(*permute.reader) ? above[index.position(permute.reader)] : nullptr;
    if (!before || index.position(before) > index.position(permute.start)) continue;
    auto started = start_group(index, permute.start, *before);
    if (!started) continue;
    // What it reads may be waited for here or lower: then that goes with it, and views of it.
    const Permute* needed = by_waited[started->front()->operands[0]->producer()];
    if (needed && index.position(needed->reader) >= index.position(before))
      started->insert(started->begin(), needed->waited.begin(), needed->waited.end());
    std::erase_if(*started, [&](const Op* op) { return moves.contains(op); });
    moves.before(before, *started);
    ctx.metrics.add("started_early", 1);
  }
  for (const Permute& permute : permutes)
    if (!moves.contains(permute.waited.front())) moves.before(permute.reader, permute.waited);
  return moves.apply();
}

}  // namespace sfsdp::passes
