// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/insertions.h"

#include <doctest/doctest.h>

#include "sfsdp/base/check.h"

namespace sfsdp::ir {
namespace {

std::string order(const Graph& graph) {
  std::string text;
  for (const auto& op : graph.ops()) text += op->opcode + " ";
  return text;
}

TEST_CASE("insertions: stand before their op in the order added, and before added ones too") {
  Graph graph;
  Op* a = graph.add("a", {}, {});
  Op* b = graph.add("b", {}, {});
  Insertions insertions(graph);
  insertions.add("b1", {}, {}, b);
  Op* a1 = insertions.add("a1", {}, {}, a);
  insertions.add("last", {}, {}, nullptr);
  insertions.add("b2", {}, {}, b);
  insertions.add("a0", {}, {}, a1);
  insertions.apply();
  CHECK(order(graph) == "a0 a1 a b1 b2 b last ");
  insertions.apply();  // nothing is left to place
  CHECK(order(graph) == "a0 a1 a b1 b2 b last ");
}

TEST_CASE("insertions: an op of another graph is refused") {
  Graph graph, other;
  graph.add("a", {}, {});
  Insertions insertions(graph);
  insertions.add("x", {}, {}, other.add("b", {}, {}));
  CHECK_THROWS_AS(insertions.apply(), InternalError);
}

}  // namespace
}  // namespace sfsdp::ir
