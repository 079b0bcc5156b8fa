// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/index.h"

#include <algorithm>

namespace sfsdp::ir {

Index::Index(const Graph& graph) : uses_(graph.uses()) {
  order_.reserve(graph.ops().size());
  position_.reserve(graph.ops().size());
  for (const auto& op : graph.ops()) {
    position_.emplace(op.get(), order_.size());
    order_.push_back(op.get());
  }
  returned_.insert(graph.outputs.begin(), graph.outputs.end());
  for (const Carry& carry : graph.carries) returned_.insert(carry.next);
}

Op* Index::next(const Op* op) const {
  const size_t after = position(op) + 1;
  return after < order_.size() ? order_[after] : nullptr;
}

const std::vector<Op*>& Index::readers(const Value* value) const {
  static const std::vector<Op*> kNone;
  const auto found = uses_.find(value);
  return found == uses_.end() ? kNone : found->second;
}

Op* Index::only_reader(const Value* value) const {
  const auto& all = readers(value);
  return all.size() == 1 && !is_returned(value) ? all[0] : nullptr;
}

Op* Index::first_of(const std::vector<Op*>& ops) const {
  return *std::ranges::min_element(ops, {}, [&](const Op* op) { return position(op); });
}

}  // namespace sfsdp::ir
