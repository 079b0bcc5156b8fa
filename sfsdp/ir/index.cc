// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/index.h"

#include <algorithm>

#include "sfsdp/base/check.h"

namespace sfsdp::ir {

Index::Index(const Graph& graph)
    : position_(graph.id_bound()), begin_(graph.id_bound() + 1), returned_(graph.id_bound()) {
  order_.reserve(graph.ops().size());
  for (const auto& op : graph.ops()) {
    position_[op->id()] = order_.size();
    order_.push_back(op.get());
  }
  // Readers are counted, then put: both walks see each reader of a value once.
  const auto each_read = [&](auto&& visit) {
    for (Op* op : order_)
      for (auto operand = op->operands.begin(); operand != op->operands.end(); ++operand)
        if (*operand && std::find(op->operands.begin(), operand, *operand) == operand) visit((*operand)->id(), op);
  };
  each_read([&](size_t id, Op*) { ++begin_[id + 1]; });
  for (size_t id = 1; id < begin_.size(); ++id) begin_[id] += begin_[id - 1];
  readers_.resize(begin_.back());
  std::vector<size_t> next(begin_.begin(), begin_.end() - 1);
  each_read([&](size_t id, Op* op) { readers_[next[id]++] = op; });
  for (const Value* output : graph.outputs) returned_[output->id()] = true;
  for (const Carry& carry : graph.carries) returned_[carry.next->id()] = true;
}

size_t Index::position(const Op* op) const {
  SFSDP_CHECK(op->id() < position_.size() && order_.at(position_[op->id()]) == op, name_of(*op),
              " was not in the graph when it was indexed");
  return position_[op->id()];
}

bool Index::is_returned(const Value* value) const { return value->id() < returned_.size() && returned_[value->id()]; }

Op* Index::next(const Op* op) const {
  const size_t after = position(op) + 1;
  return after < order_.size() ? order_[after] : nullptr;
}

std::span<Op* const> Index::readers(const Value* value) const {
  if (value->id() + 1 >= begin_.size()) return {};
  return std::span(readers_).subspan(begin_[value->id()], begin_[value->id() + 1] - begin_[value->id()]);
}

Op* Index::only_reader(const Value* value) const {
  const auto all = readers(value);
  return all.size() == 1 && !is_returned(value) ? all[0] : nullptr;
}

Op* Index::first_of(const std::vector<Op*>& ops) const {
  return *std::ranges::min_element(ops, {}, [&](const Op* op) { return position(op); });
}

}  // namespace sfsdp::ir
