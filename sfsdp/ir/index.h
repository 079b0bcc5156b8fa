// SPDX-License-Identifier: BSD-3-Clause
// Where the ops of a graph stand and who reads its values, as they are when the index is made.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "sfsdp/ir/graph.h"

namespace sfsdp::ir {

class Index {
 public:
  explicit Index(const Graph& graph);

  // Throws InternalError for an op that was not there.
  size_t position(const Op* op) const;
  Op* at(size_t position) const { return order_.at(position); }
  Op* next(const Op* op) const;  // nullptr: it is the last
  size_t size() const { return order_.size(); }

  // Each reader of a value of this graph once, in the graph's order. None where the value is newer than the index.
  std::span<Op* const> readers(const Value* value) const;
  bool is_returned(const Value* value) const;  // by the step, or carried on
  // The one op that reads a value which the step does not return; nullptr: none or several.
  Op* only_reader(const Value* value) const;
  // The first in the graph's order; `ops` is not empty.
  Op* first_of(const std::vector<Op*>& ops) const;

 private:
  std::vector<Op*> order_;
  std::vector<size_t> position_;  // by the op's id
  std::vector<Op*> readers_;      // those of all values
  std::vector<size_t> begin_;     // of a value's readers, by its id; they end where those of the next id begin
  std::vector<bool> returned_;    // by the value's id
};

}  // namespace sfsdp::ir
