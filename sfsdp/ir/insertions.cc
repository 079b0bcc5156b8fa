// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/insertions.h"

#include <unordered_set>
#include <utility>

#include "sfsdp/base/check.h"

namespace sfsdp::ir {

Op* Insertions::add(std::string opcode, std::vector<Value*> operands, std::vector<Graph::NewResult> results,
                    Op* before) {
  Op* op = graph_.add(std::move(opcode), std::move(operands), std::move(results));
  if (before) {
    before_[before].push_back(op);
    ++count_;
  }
  return op;
}

void Insertions::apply() {
  if (count_ == 0) return;
  std::unordered_set<const Op*> moved;
  for (const auto& [place, ops] : before_)
    for (const Op* op : ops) moved.insert(op);
  std::vector<Op*> order;
  order.reserve(graph_.ops().size());
  // An added op can itself have ops before it, hence the stack: (op, how many of those before it are placed).
  std::vector<std::pair<Op*, size_t>> stack;
  for (const auto& op : graph_.ops()) {
    if (moved.contains(op.get())) continue;
    stack.emplace_back(op.get(), 0);
    while (!stack.empty()) {
      auto& [top, placed] = stack.back();
      const auto waiting = before_.find(top);
      if (waiting != before_.end() && placed < waiting->second.size()) {
        stack.emplace_back(waiting->second[placed++], 0);
      } else {
        order.push_back(top);
        stack.pop_back();
      }
    }
  }
  SFSDP_CHECK(order.size() == graph_.ops().size(), "an op was added before one of another graph");
  graph_.set_order(order);
  before_.clear();
  count_ = 0;
}

void take_places(Graph& graph, const std::map<Value*, Value*>& replaced, const std::vector<Op*>& erased) {
  graph.replace_uses(replaced);
  std::vector<std::pair<Value*, std::string>> names;  // free once the ops are gone
  for (const auto& [old, value] : replaced) names.emplace_back(value, old->name());
  graph.erase(erased);
  for (const auto& [value, name] : names) graph.rename(value, name);
}

}  // namespace sfsdp::ir
