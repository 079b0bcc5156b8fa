// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/builder.h"

#include <doctest/doctest.h>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/index.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"

namespace sfsdp::ir::builder_test {
namespace {

std::string order(const Graph& graph) {
  std::string text;
  for (const auto& op : graph.ops()) text += op->opcode.str() + " ";
  return text;
}

TEST_CASE("builder: ops stand before or after their place in the order made, and at new ones too") {
  Graph graph;
  Op* a = graph.add("a", {}, {});
  Op* b = graph.add("b", {}, {});
  Builder build(graph);
  build.before(b).op("b1", {}, {});
  Op* a1 = build.before(a).op("a1", {}, {});
  build.at_end(Section::Opt).op("last", {}, {});
  build.before(b).op("b2", {}, {});
  build.before(a1).op("a0", {}, {});
  build.after(b).op("b3", {}, {});
  build.after(b).op("b4", {}, {});
  build.apply();
  CHECK(order(graph) == "a0 a1 a b1 b2 b b3 b4 last ");
  build.apply();  // nothing is left to place
  CHECK(order(graph) == "a0 a1 a b1 b2 b b3 b4 last ");
}

TEST_CASE("builder: section and path come from the place, replaced values from the new op, names too where asked") {
  Graph graph = parse_or_throw(R"(graph mesh [] view local
  %x = input name=x : f32[4]
bwd:
  %y = aten.neg %x : f32[4] at layers.0
  %z = aten.relu %y : f32[4] at layers.1
  return %z
)");
  Value* x = graph.find_value("x");
  Op* y = graph.find_value("y")->producer();
  Op* z = graph.find_value("z")->producer();
  Builder build(graph);
  Value* low = build.before(y).cast(x, DType::bf16);
  CHECK(build.before(y).cast(low, DType::bf16) == low);
  Value* back = build.before(y).cast(low, DType::f32, "y");
  build.take_place(y->result(), back);
  build.erase(y);
  build.after(z)
      .like(*z)
      .at("tail")
      .in(Section::Opt)
      .list("pack", {x, low}, Type::tensor(DType::f32, {8}), "packed", {{"offsets", std::vector<int64_t>{0, 4}}});
  build.apply();
  CHECK(print(graph) == R"(graph mesh [] view local
  %x = input name=x : f32[4]
bwd:
  %x.cast = cast %x : bf16[4] at layers.0
  %y = cast %x.cast : f32[4] at layers.0
  %z = aten.relu %y : f32[4] at layers.1
opt:
  %packed = pack [%x, %x.cast] offsets=[0, 4] : f32[8] at tail
  return %z
)");
}

TEST_CASE("builder: a place in another graph is refused") {
  Graph graph, other;
  graph.add("a", {}, {});
  Builder build(graph);
  build.before(other.add("b", {}, {})).op("x", {}, {});
  CHECK_THROWS_AS(build.apply(), InternalError);
}

TEST_CASE("index: positions, readers, and the only reader of what the step does not return") {
  const Graph graph = parse_or_throw(R"(graph mesh [] view local
  %x = input name=x : f32[4]
fwd:
  %y = aten.neg %x : f32[4]
  %z = aten.add.Tensor %y, %y : f32[4]
  %u = aten.relu %z : f32[4]
  return %z
)");
  const Index index(graph);
  const auto value = [&](const char* name) { return graph.find_value(name); };
  CHECK(index.position(value("z")->producer()) == 2);
  CHECK(index.at(2) == value("z")->producer());
  CHECK(index.next(value("z")->producer()) == value("u")->producer());
  CHECK(index.next(value("u")->producer()) == nullptr);
  CHECK(index.readers(value("y")).size() == 1);  // once, however often it reads
  CHECK(index.readers(value("u")).empty());
  CHECK(index.only_reader(value("y")) == value("z")->producer());
  CHECK(index.only_reader(value("z")) == nullptr);
  CHECK(index.is_returned(value("z")));
}

}  // namespace
}  // namespace sfsdp::ir::builder_test
