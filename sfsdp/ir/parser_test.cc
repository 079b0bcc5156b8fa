// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/parser.h"

#include <doctest/doctest.h>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/random_graph.h"

namespace sfsdp::ir::parser_test {
namespace {

using testing::dedent;

void expect_round_trip(std::string_view indented) {
  const std::string text = dedent(indented);
  ParseResult parsed = parse(text, "test.ir");
  CHECK_MESSAGE(parsed.ok(), to_string(parsed.diagnostics));
  CHECK(print(parsed.graph) == text);
}

// The one diagnostic of a text, as a user sees it.
void expect_error(std::string_view indented, const std::string& expected) {
  const ParseResult parsed = parse(dedent(indented), "test.ir");
  CHECK(to_string(parsed.diagnostics) == expected);
}

TEST_CASE("print(parse(text)) is the text") {
  expect_round_trip(R"(
    graph mesh [dp_replicate=2, dp_shard=4] view local
      %w = param name=w trainable=false : f32[64/dp_shard, 256]
      %x = input name=x : bf16[8, 256] own(dp_replicate, dp_shard)
      %none.of.it = state name="two words" : i64[]
    fwd:
      %w.full = all_gather %w axis=dp_shard dim=0 : f32[256, 256]
      %y = aten.cat [%x, %x] dim=0 : bf16[16, 256] at layers.3
      %a, %b = aten.foo.out %x, none, %y alpha=1.0 list=[1, 2] : f32[8], f32[]
      aten.print %a
    bwd:
      %g = aten.mm %a, %b bwd_of=%y : f32[8]
    fwd:
      %start = all_gather.start %w axis=[dp_replicate, dp_shard] dim=0 : async f32[512, 256]
      %t = order : token
    init:
      %late = scalar value=true : b1[]
      return %a, %g
      carry %w = %g
  )");
}

TEST_CASE("types keep splits, padding, strides and states") {
  expect_round_trip(R"(
    graph mesh [a=2, b=3] view global
      %x = input name=x : f32[7/a/b~, 0~, 5]{1, -2, 0} own(a) sum(b) max(a, b) min(b)
      %y = input name=y : async f8e5m2[8, 4]{1, 8}
  )");
}

TEST_CASE("attributes of every kind") {
  expect_round_trip(R"(
    graph mesh [] view global
      %x = op a=true b=none c=-7 d=1.0 e=1e+300 f=inf g=-inf h=nan i=-0.0 j=bf16 k=word.2 l="bf16" m="" n="a \"\\\n\t\x01" : f32[]
      %y = op a=[1, -2] b=[]i c=[1.5, inf] d=[]f e=[true, false] f=[]b g=[a, "b c", "true"] h=[]s : f32[]
  )");
}

// nan_to_num's attribute is called so.
TEST_CASE("words of values may be names of attributes") {
  const char* text = R"(
    graph mesh [] view global
      %x = input name=x : f32[2]
    fwd:
      %y = aten.nan_to_num %x bf16=bf16 false=true inf=inf nan=0.5 none=none true=false : f32[2]
      %z = aten.nan_to_num %x nan=nan : f32[2]
      return %y, %z
  )";
  expect_round_trip(text);
  CHECK(verify(parse_or_throw(dedent(text))).empty());
}

TEST_CASE("operand lists may be empty, nested nowhere, and hold none") {
  expect_round_trip(R"(
    graph mesh [] view global
      %x = input name=x : f32[]
      %y = aten.op [], [], %x, [none, %x], none, [] : f32[]
      %z = aten.op none : f32[]
      %v = aten.op none=1 : f32[]
  )");
}

TEST_CASE("comments, blank lines, tabs and a missing last newline are read over") {
  const Graph graph =
      parse_or_throw("// one\ngraph mesh [a=2]  view global // two\n\n\t%x = input name=\"//\" :f32[ 2 ]//3");
  CHECK(print(graph) == "graph mesh [a=2] view global\n  %x = input name=\"//\" : f32[2]\n");
}

TEST_CASE("parse(print(graph)) is the graph, and prints alike: random graphs") {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const Graph graph = testing::random_graph(seed);
    const std::string text = print(graph);
    const ParseResult parsed = parse(text);
    REQUIRE_MESSAGE(parsed.ok(), "seed ", seed, '\n', to_string(parsed.diagnostics), '\n', text);
    REQUIRE_MESSAGE(testing::find_difference(graph, parsed.graph) == "", "seed ", seed, '\n', text);
    REQUIRE(print(parsed.graph) == text);
  }
}

TEST_CASE("find_difference sees what the property above relies on") {
  const auto differ = [](std::string_view a, std::string_view b) {
    const std::string head = "graph mesh [] view global\n  %x = input name=x : f32[]\n  ";
    return testing::find_difference(parse_or_throw(head + std::string(a)), parse_or_throw(head + std::string(b))) != "";
  };
  CHECK_FALSE(differ("%y = op %x a=1 : f32[]", "%y = op %x a=1 : f32[]"));
  CHECK(differ("%y = op %x a=1 : f32[]", "%y = op %x a=1.0 : f32[]"));
  CHECK(differ("%y = op %x a=0.0 : f32[]", "%y = op %x a=-0.0 : f32[]"));
  CHECK(differ("%y = op %x : f32[]", "%y = op [%x] : f32[]"));
  CHECK(differ("%y = op %x : f32[]", "%y = op none : f32[]"));
  CHECK(differ("%y = op %x : f32[]", "%y = op %x : f32[1]"));
  CHECK(differ("%y = op %x : f32[]", "%y = op %x bwd_of=%x : f32[]"));
  CHECK(differ("%y = op %x : f32[]", "%y = op %x : f32[] at a"));
  CHECK(differ("return %x", "carry %x = %x"));
}

TEST_CASE("any cut of a text gives diagnostics or a graph, never a crash") {
  const std::string text = print(testing::random_graph(7)) + print(testing::random_graph(8));
  for (size_t length = 0; length < text.size(); ++length) {
    const ParseResult parsed = parse(text.substr(0, length));
    CHECK(print(parsed.graph) != "");
  }
  for (size_t i = 0; i < text.size(); ++i) {
    std::string broken = text;
    broken[i] = "%[]{}=,:\"\\~/ -x9\n"[i % 17];
    CHECK(print(parse(broken).graph) != "");
  }
}

TEST_CASE("an error names file, line, column, expected and got, and what to do") {
  expect_error("graph mesh [a=2] view global\n  %x = input name=x : f33[2]",
               "test.ir:2:23: cannot read this line from 'f33' on\n"
               "  expected a type such as f32[8, 4], async f32[8, 4] or token, got 'f33'");
  expect_error("graph mesh [a=2] view global\n  %loss = input name=x : f32[]\n  return %los",
               "test.ir:3:10: %los is read, but no line above defines it\n  did you mean %loss?");
}

TEST_CASE("all mistakes are reported, but none twice: who reads a broken line's result is not blamed") {
  const ParseResult parsed = parse(dedent(R"(
    graph mesh [] view global
      %x = input name=x : f32[
      %y = aten.relu %x : f32[]
      %z = aten.relu %y : f32[]
      %z2 = aten.relu %missing : f32[]
  )"));
  REQUIRE(parsed.diagnostics.size() == 2);
  CHECK(parsed.diagnostics[0].where.line == 2);
  CHECK(parsed.diagnostics[1].where.line == 5);
}

TEST_CASE("each broken line is refused") {
  const std::string head = "graph mesh [a=2] view global\n  %x = input name=x : f32[2]\n";
  for (const char* line : {"%x = input name=y : f32[]",
                           "%y, %y = op : f32[], f32[]",
                           "%y = op %x",
                           "%y = op : f32[], f32[]",
                           "op : f32[]",
                           "%y op : f32[]",
                           "%y = op a= : f32[]",
                           "%y = op a=1 a=2 : f32[]",
                           "%y = op a=[1, 2.0] : f32[]",
                           "%y = op a=[] : f32[]",
                           "%y = op a=[f32] : f32[]",
                           "%y = op a=\"b : f32[]",
                           "%y = op a=\"\\q\" : f32[]",
                           "%y = op a=99999999999999999999 : f32[]",
                           "%y = op a=1x : f32[]",
                           "%y = op a=1.2.3 : f32[]",
                           "%y = op %x, : f32[]",
                           "%y = op [%x : f32[]",
                           "%y = op %x : f32[] at",
                           "%y = op %x : f32[2/] ",
                           "%y = op %x : f32[2] own()",
                           "%y = op %x : f32[2] half(a)",
                           "%y = op %x : async",
                           "% = op : f32[]",
                           "%y = op ? : f32[]",
                           "return",
                           "return none",
                           "carry %x",
                           "carry %x = ",
                           "fwd: %y = op : f32[]",
                           "%y = op %x bwd_of=3 : f32[]",
                           "= op"}) {
    CHECK_MESSAGE(!parse(head + line).ok(), std::string(line));
  }
  CHECK_FALSE(parse(head + "return %x\n return %x").ok());
  for (const char* header : {"", "graph", "graph mesh [a] view global", "graph mesh [a=2] view",
                             "graph mesh [a=2] view all", "%x = input name=x : f32[]"})
    CHECK_MESSAGE(!parse(header).ok(), std::string(header));
  CHECK_THROWS_AS(parse_or_throw(""), UserError);
}

TEST_CASE("parse says where each op stood") {
  const ParseResult parsed = parse("graph mesh [] view global\n\n  %x = input name=x : f32[]", "a.ir");
  const Location& where = parsed.locations.at(parsed.graph.ops()[0].get());
  CHECK(where.file == "a.ir");
  CHECK(where.line == 3);
  CHECK(where.column == 3);
}

}  // namespace
}  // namespace sfsdp::ir::parser_test
