// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/moves.h"

#include <algorithm>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/part.h"
#include "sfsdp/ir/side_table.h"

namespace sfsdp::ir {

void Moves::add(Places& places, const Op* place, std::span<Op* const> ops) {
  std::vector<Op*>& there = places[place];
  there.insert(there.end(), ops.begin(), ops.end());
  moved_.insert(ops.begin(), ops.end());
}

void Moves::before(const Op* place, std::span<Op* const> ops) { add(before_, place, ops); }
void Moves::after(const Op* place, std::span<Op* const> ops) { add(after_, place, ops); }

bool Moves::apply() {
  if (moved_.empty()) return false;
  std::vector<Op*> order;
  order.reserve(graph_.ops().size());
  // Chains of ops that are moved to moved ones are short.
  const auto put = [&](const auto& self, Op* op) -> void {
    const auto put_all = [&](const Places& places) {
      if (const auto found = places.find(op); found != places.end())
        for (Op* moved : found->second) self(self, moved);
    };
    put_all(before_);
    order.push_back(op);
    put_all(after_);
  };
  for (const auto& op : graph_.ops())
    if (!moved_.contains(op.get())) put(put, op.get());
  SFSDP_CHECK(order.size() == graph_.ops().size(), "an op was moved twice, or to one of another graph");
  before_.clear();
  after_.clear();
  moved_.clear();
  return graph_.set_order(order);
}

bool order_by(Graph& graph, const std::function<int64_t(const Op&)>& key) {
  std::vector<std::pair<int64_t, Op*>> wanted;
  wanted.reserve(graph.ops().size());
  for (const auto& op : graph.ops()) wanted.emplace_back(key(*op), op.get());
  std::ranges::stable_sort(wanted, {}, &std::pair<int64_t, Op*>::first);
  enum State : uint8_t { Untouched, Open, Placed };  // Open: its operands are being placed
  OpTable<State> state(graph, Untouched);
  std::vector<Op*> order, open;
  order.reserve(wanted.size());
  for (const auto& [unused, root] : wanted) {
    open.push_back(root);
    while (!open.empty()) {
      Op* op = open.back();
      if (state[op] == Placed) {
        open.pop_back();
      } else if (state[op] == Open) {
        open.pop_back();
        state[op] = Placed;
        order.push_back(op);
      } else {
        state[op] = Open;
        for (const Value* operand : op->operands) {
          if (!operand || state[operand->producer()] == Placed) continue;
          SFSDP_CHECK(state[operand->producer()] == Untouched, name_of(*op), " would need its own result");
          open.push_back(operand->producer());
        }
      }
    }
  }
  return graph.set_order(order);
}

bool order_by_part(Graph& graph) {
  return order_by(graph, [](const Op& op) { return static_cast<int64_t>(part_of(op.section)); });
}

}  // namespace sfsdp::ir
