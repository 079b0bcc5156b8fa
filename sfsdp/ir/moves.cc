// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/moves.h"

#include "sfsdp/base/check.h"

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

}  // namespace sfsdp::ir
