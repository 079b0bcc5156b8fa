// SPDX-License-Identifier: BSD-3-Clause
// Ops moved before or after others in one walk.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "sfsdp/ir/graph.h"

namespace sfsdp::ir {

class Moves {
 public:
  explicit Moves(Graph& graph) : graph_(graph) {}

  // Moves `ops`, in their order, to `place`, after what was moved there already. What is moved may be a place itself.
  void before(const Op* place, std::span<Op* const> ops);
  void after(const Op* place, std::span<Op* const> ops);
  bool contains(const Op* op) const { return moved_.contains(op); }
  // Forgets the moves; returns whether the order changed.
  bool apply();

 private:
  using Places = std::unordered_map<const Op*, std::vector<Op*>>;
  void add(Places& places, const Op* place, std::span<Op* const> ops);

  Graph& graph_;
  Places before_, after_;
  std::unordered_set<const Op*> moved_;
};

// Orders by key, equals as they stand; an op that is read before its turn comes just before its reader. Returns whether
// the order changed. Throws InternalError where an op would need its own result.
bool order_by(Graph& graph, const std::function<int64_t(const Op&)>& key);

// Puts ops into the order in which they run: what stands before the loop over micro-batches, the loop, the rest. Returns
// whether the order changed.
bool order_by_part(Graph& graph);

}  // namespace sfsdp::ir
