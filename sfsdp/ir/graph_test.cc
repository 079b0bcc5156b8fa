// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/graph.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/index.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/testing/random_graph.h"

namespace sfsdp::ir::graph_test {
namespace {

const Type kType = Type::tensor(DType::f32, {2});

// %w -> %a -> %b
Graph chain() {
  Graph graph;
  Op* w = graph.add("param", {}, {{"w", kType}});
  w->attrs["name"] = std::string("w");
  w->section = Section::Init;
  Op* a = graph.add("aten.relu", {w->result()}, {{"a", kType}});
  Op* b = graph.add("aten.neg", {a->result()}, {{"b", kType}});
  b->bwd_of = a;
  graph.outputs = {b->result()};
  graph.carries = {{w->result(), b->result()}};
  return graph;
}

TEST_CASE("a clone shares nothing with the original") {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Graph graph = testing::random_graph(seed);
    const std::string text = print(graph);
    Graph copy = graph.clone();
    CHECK(testing::find_difference(graph, copy) == "");
    for (const auto& op : copy.ops()) op->opcode = "changed";
    for (const auto& op : copy.ops())
      for (const auto& result : op->results()) copy.rename(result.get(), "renamed");
    copy.outputs.clear();
    copy.carries.clear();
    CHECK(print(graph) == text);
  }
}

TEST_CASE("a clone's bwd_of, outputs and carries point into the clone") {
  const Graph graph = chain();
  const Graph copy = graph.clone();
  CHECK(copy.ops()[2]->bwd_of == copy.ops()[1].get());
  CHECK(copy.outputs[0] == copy.ops()[2]->result());
  CHECK(copy.carries[0].current == copy.ops()[0]->result());
  CHECK(copy.carries[0].next == copy.ops()[2]->result());
  CHECK(copy.find_value("a") == copy.ops()[1]->result());
}

TEST_CASE("a value of another graph with the same id is neither cloned nor replaced") {
  Graph graph = chain();
  const Graph other = chain();
  Op* reader = graph.ops()[2].get();
  Value* own = graph.ops()[1]->result();
  Value* foreign = other.ops()[1]->result();
  REQUIRE(own->id() == foreign->id());
  reader->operands[0] = foreign;
  CHECK_THROWS_AS(graph.clone(), InternalError);
  graph.replace_uses(own, graph.ops()[0]->result());
  CHECK(reader->operands[0] == foreign);
}

TEST_CASE("names are unique, legal, and free again when their op is gone") {
  Graph graph;
  Op* first = graph.add("aten.relu", {}, {{"x", kType}});
  CHECK(graph.add("aten.relu", {}, {{"x", kType}})->result()->name() == "x_1");
  CHECK(graph.add("aten.relu", {}, {{"x", kType}})->result()->name() == "x_2");
  CHECK(graph.add("aten.relu", {}, {{"a b/c", kType}})->result()->name() == "a_b_c");
  CHECK(graph.add("aten.relu", {}, {{"", kType}})->result()->name() == "0");
  CHECK(graph.add("aten.relu", {}, {{"1", kType}})->result()->name() == "1");
  CHECK(graph.add("aten.relu", {}, {{"", kType}})->result()->name() == "2");
  graph.erase(first);
  CHECK(graph.find_value("x") == nullptr);
  CHECK(graph.add("aten.relu", {}, {{"x", kType}})->result()->name() == "x");
}

TEST_CASE("rename finds a free name and keeps the index") {
  Graph graph = chain();
  Value* a = graph.find_value("a");
  graph.rename(a, "b");
  CHECK(a->name() == "b_1");
  CHECK(graph.find_value("a") == nullptr);
  CHECK(graph.find_value("b_1") == a);
}

TEST_CASE("add places an op before another") {
  Graph graph = chain();
  Op* b = graph.find_value("b")->producer();
  Op* added = graph.add("aten.silu", {graph.find_value("a")}, {{"c", kType}}, b);
  CHECK(graph.ops()[2].get() == added);
  CHECK(graph.ops()[3].get() == b);
}

TEST_CASE("replace_uses reaches operands, outputs and carries") {
  Graph graph = chain();
  Value* a = graph.find_value("a");
  graph.replace_uses(graph.find_value("b"), a);
  graph.replace_uses(graph.find_value("w"), a);
  CHECK(graph.outputs[0] == a);
  CHECK(graph.carries[0].next == a);
  CHECK(graph.carries[0].current == a);
  CHECK(a->producer()->operands[0] == a);
}

TEST_CASE("erase refuses what is still read, and clears bwd_of") {
  Graph graph = chain();
  Op* a = graph.find_value("a")->producer();
  Op* b = graph.find_value("b")->producer();
  CHECK_THROWS_AS(graph.erase(a), InternalError);
  CHECK_THROWS_AS(graph.erase(b), InternalError);  // an output
  graph.replace_uses(graph.find_value("a"), graph.find_value("w"));
  graph.erase(a);
  CHECK(b->bwd_of == nullptr);
  graph.outputs.clear();
  graph.carries.clear();
  graph.erase(std::vector<Op*>{b, graph.find_value("w")->producer()});  // they read each other
  CHECK(graph.ops().empty());
}

TEST_CASE("set_order takes permutations only, and says whether it changed") {
  Graph graph = chain();
  Op* w = graph.ops()[0].get();
  Op* a = graph.ops()[1].get();
  Op* b = graph.ops()[2].get();
  CHECK_FALSE(graph.set_order({w, a, b}));
  CHECK(graph.set_order({w, b, a}));
  CHECK(graph.ops()[1].get() == b);
  CHECK_THROWS_AS(graph.set_order({w, b}), InternalError);
  CHECK_THROWS_AS(graph.set_order({w, b, b}), InternalError);
  CHECK(graph.ops().size() == 3);
}

TEST_CASE("an index lists each reader once, in order") {
  Graph graph = chain();
  Value* w = graph.find_value("w");
  Op* both = graph.add("aten.add.Tensor", {w, w, nullptr}, {{"s", kType}});
  const Index index(graph);
  CHECK(std::ranges::equal(index.readers(w), std::vector<Op*>{graph.find_value("a")->producer(), both}));
  CHECK(index.readers(both->result()).empty());
  const Op* later = graph.add("aten.neg", {w}, {{"n", kType}});
  CHECK(index.readers(later->result()).empty());
  CHECK_THROWS_WITH_AS(index.position(later), doctest::Contains("%n was not in the graph"), InternalError);
}

TEST_CASE("attr names op and attribute when it is absent or of another kind") {
  const Graph graph = chain();
  const Op& w = *graph.ops()[0];
  CHECK(w.attr<std::string>("name") == "w");
  CHECK_THROWS_WITH_AS(w.attr<bool>("trainable"), doctest::Contains("%w = param has no attribute trainable"),
                       InternalError);
  CHECK_THROWS_WITH_AS(w.attr<int64_t>("name"), doctest::Contains("attribute name is of another kind: w"),
                       InternalError);
  CHECK(graph.find_param("w") == &w);
  CHECK(graph.find_param("v") == nullptr);
}

std::string cut_text(int64_t size, const std::vector<std::pair<int64_t, int64_t>>& ranks_and_blocks) {
  Type type = Type::tensor(DType::f32, {size});
  const char* axes[] = {"cp", "tp", "ep"};
  for (size_t i = 0; i < ranks_and_blocks.size(); ++i)
    type.dims[0].cut(axes[i], ranks_and_blocks[i].first, ranks_and_blocks[i].second);
  std::ostringstream text;
  text << type;
  return text.str();
}

TEST_CASE("a dimension that axes cut: ranges of one go within what another one cuts where its parts are whole ranges") {
  CHECK(cut_text(24, {{2, 1}, {3, 1}}) == "f32[4/cp/tp]");
  CHECK(cut_text(24, {{2, 4}, {2, 1}}) == "f32[6/tp/cp:2]");
  CHECK(cut_text(24, {{2, 4}, {2, 2}}) == "f32[6/tp:2/cp:2]");
  CHECK(cut_text(24, {{2, 1}, {3, 2}}) == "f32[4/cp/tp:2]");
  // A third of 4 ranges ends within one.
  CHECK(cut_text(24, {{2, 4}, {3, 1}}) == "f32[4/cp:4/tp]");
  CHECK(cut_text(24, {{2, 2}, {3, 1}}) == "f32[4/cp:2/tp]");
  CHECK(cut_text(24, {{2, 4}, {3, 1}, {2, 1}}) == "f32[2/cp:4/tp/ep]");
}

TEST_CASE("a type counts elements and bytes") {
  CHECK(Type::tensor(DType::bf16, {3, 5}).bytes() == 30);
  CHECK(Type::tensor(DType::f64, {}).bytes() == 8);
  CHECK(Type::tensor(DType::b1, {0, 7}).numel() == 0);
  Type token;
  token.kind = Type::Kind::Token;
  CHECK(token.bytes() == 0);
  CHECK(parse_dtype("f8e4m3") == DType::f8e4m3);
  CHECK_FALSE(parse_dtype("float").has_value());
}

}  // namespace
}  // namespace sfsdp::ir::graph_test
