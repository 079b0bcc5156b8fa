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
  std::vector<Op*> order;
  order.reserve(graph_.ops().size());
  const auto put = [&](const Places& places, const Op* at) {
    if (const auto found = places.find(at); found != places.end())
      order.insert(order.end(), found->second.begin(), found->second.end());
  };
  for (const auto& op : graph_.ops()) {
    if (moved_.contains(op.get())) continue;
    put(before_, op.get());
    order.push_back(op.get());
    put(after_, op.get());
  }
  SFSDP_CHECK(order.size() == graph_.ops().size(), "an op was moved to one that is moved itself, or moved twice");
  return graph_.set_order(order);
}

}  // namespace sfsdp::ir
