// SPDX-License-Identifier: BSD-3-Clause
// Where the ops of a graph stand and who reads its values, as they are when the index is made.
#pragma once

#include <cstddef>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "sfsdp/ir/graph.h"

namespace sfsdp::ir {

class Index {
 public:
  explicit Index(const Graph& graph);

  size_t position(const Op* op) const { return position_.at(op); }
  Op* at(size_t position) const { return order_.at(position); }
  Op* next(const Op* op) const;  // nullptr: it is the last
  size_t size() const { return order_.size(); }

  const std::vector<Op*>& readers(const Value* value) const;                        // in the graph's order
  bool is_returned(const Value* value) const { return returned_.contains(value); }  // by the step, or carried on
  // The one op that reads a value which the step does not return; nullptr: none or several.
  Op* only_reader(const Value* value) const;
  // The first in the graph's order; `ops` is not empty.
  Op* first_of(const std::vector<Op*>& ops) const;

 private:
  std::vector<Op*> order_;
  std::unordered_map<const Op*, size_t> position_;
  Graph::Uses uses_;
  std::unordered_set<const Value*> returned_;
};

}  // namespace sfsdp::ir
