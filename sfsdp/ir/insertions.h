// SPDX-License-Identifier: BSD-3-Clause
// Many ops placed before others in one walk (Graph::add with `before` costs a walk each), and in the places of others.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "sfsdp/ir/graph.h"

namespace sfsdp::ir {

class Insertions {
 public:
  explicit Insertions(Graph& graph) : graph_(graph) {}

  // As Graph::add; the op stands at the end until apply(). Ops before the same one keep the order they were added in.
  Op* add(std::string opcode, std::vector<Value*> operands, std::vector<Graph::NewResult> results, Op* before);
  // Puts the added ops in their places.
  void apply();

 private:
  Graph& graph_;
  std::unordered_map<const Op*, std::vector<Op*>> before_;
  size_t count_ = 0;
};

// Readers of the old values read the new ones, which take the old names; `erased` holds the ops that made the old ones.
void take_places(Graph& graph, const std::map<Value*, Value*>& replaced, const std::vector<Op*>& erased);

}  // namespace sfsdp::ir
