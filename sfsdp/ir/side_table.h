// SPDX-License-Identifier: BSD-3-Clause
// What a walk notes about the ops or values of one graph: a vector by their ids.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "sfsdp/ir/graph.h"

namespace sfsdp::ir {

// Has room for the ops (values) that the graph has when the table is made. A newer one, or one of another graph, must not be asked for.
template <class Key, class T>
class SideTable {
 public:
  explicit SideTable(const Graph& graph, T value = {}) : entries_(graph.id_bound(), std::move(value)) {}
  auto operator[](const Key* key) -> decltype(auto) { return entries_[key->id()]; }
  auto operator[](const Key* key) const -> decltype(auto) { return entries_[key->id()]; }

 private:
  std::vector<T> entries_;
};

template <class T>
using OpTable = SideTable<Op, T>;
template <class T>
using ValueTable = SideTable<Value, T>;

}  // namespace sfsdp::ir
