// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/batch_order.h"

#include <doctest/doctest.h>

#include <functional>
#include <string>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::parallel::batch_order_test {
namespace {

// Draws stand on stream 0. `ops`: after `%x`, of `rows` rows of 3 · 4, in which `row(k)` is the text of k times the rows.
using Row = std::function<std::string(int64_t)>;
using Ops = std::function<std::string(const Row& row)>;

ir::Graph step(int64_t rows, const Ops& ops) {
  const Row row = [=](int64_t k) { return std::to_string(k * rows); };
  return ir::parse_or_throw(testing::dedent(concat("graph mesh [dp_shard=1] view local\n  %x = input name=x : f32[",
                                                   row(1), ", 3, 4]\nfwd:\n", ops(row), "  return %x\n")));
}

// The draw's attributes: "replicated", "outer=3", "" for a batch in dimension 0; or what is wrong.
std::string order_of(const Ops& ops) {
  constexpr int64_t kRows = 2;
  ir::Graph graph = step(kRows, ops);
  const int64_t factor = growth_factor(graph);
  const ir::Graph grown = step(kRows * factor, ops);
  if (const std::string wrong = order_draws(graph, grown, factor); !wrong.empty()) return wrong;
  const ir::Op& draw = *graph.find_value("r")->producer();
  if (draw.has_attr("replicated")) return "replicated";
  return draw.has_attr("outer") ? concat("outer=", draw.attr<int64_t>("outer")) : "";
}

TEST_CASE("growth_factor: a prime that divides no size") {
  const auto of = [](const std::string& dims) {
    return growth_factor(
        ir::parse_or_throw(concat("graph mesh [dp_shard=1] view local\n  %x = input name=x : f32[", dims,
                                  "]\nfwd:\n  %y = aten.neg %x : f32[", dims, "]\n  return %y\n")));
  };
  CHECK(of("2, 3") == 5);
  CHECK(of("10, 3") == 7);
  CHECK(of("35, 11, 0") == 13);
}

TEST_CASE("order_draws: batch first, elsewhere, nowhere") {
  CHECK(order_of([](const Row& b) { return "  %r = aten.rand_like %x stream=0 : f32[" + b(1) + ", 3, 4]\n"; }) == "");
  CHECK(order_of([](const Row& b) { return "  %r = aten.rand stream=0 : f32[" + b(1) + ", 1]\n"; }) == "");
  CHECK(order_of([](const Row& b) { return "  %r = aten.rand stream=0 : f32[3, 4, " + b(1) + "]\n"; }) == "outer=12");
  CHECK(order_of([](const Row&) { return "  %r = aten.rand stream=0 : f32[3]\n"; }) == "replicated");
}

TEST_CASE("order_draws: a folded dimension has the order of the reshape that made it") {
  const auto draw = [](const Row& b) { return "  %r = aten.rand_like %y stream=0 : f32[" + b(3) + ", 4]\n"; };
  CHECK(order_of([&](const Row& b) { return "  %y = aten.view %x : f32[" + b(3) + ", 4]\n" + draw(b); }) == "");
  const auto transposed = [](const Row& b) {
    return "  %t = aten.transpose.int %x dim0=0 dim1=1 : f32[3, " + b(1) + ", 4]\n";
  };
  CHECK(order_of([&](const Row& b) {
          return transposed(b) + "  %y = aten.view %t : f32[" + b(3) + ", 4]\n" + draw(b);
        }) == "outer=3");
  CHECK(order_of([&](const Row& b) {  // folded, computed with, moved, and unfolded again
          return transposed(b) + "  %f = aten.view %t : f32[" + b(3) + ", 4]\n  %n = aten.t %f : f32[4, " + b(3) +
                 "]\n  %y = aten.view %n : f32[4, 3, " + b(1) + "]\n  %r = aten.rand_like %y stream=0 : f32[4, 3, " +
                 b(1) + "]\n";
        }) == "outer=12");
}

TEST_CASE("order_draws: what cannot be told is said with the op") {
  const auto refused = [](const Ops& ops, const std::string& why) {
    const std::string wrong = order_of(ops);
    CAPTURE(wrong);
    CHECK(wrong.starts_with("aten.rand at drop draws f32["));
    CHECK(wrong.find(why) != std::string::npos);
  };
  const auto rand = [](const std::string& dims, int64_t stream = 0) {
    return concat("  %r = aten.rand stream=", stream, " : f32[", dims, "] at drop\n");
  };
  refused([&](const Row& b) { return rand(b(1) + ", " + b(1)); }, "which grows in more than one way");
  refused([&](const Row& b) { return rand(b(3) + ", 4"); }, "dimension 0 holds rows and something else");
  refused([&](const Row& b) { return rand(std::to_string(std::stoll(b(1)) + 1)); }, "with 5 times the rows it draws");
  refused([&](const Row& b) { return rand("3", std::stoll(b(1))); }, "it is not drawn");
  const std::string loop = order_of([&](const Row& b) {  // a draw for each row
    std::string text = rand("3");
    for (int64_t row = 1; row < std::stoll(b(1)); ++row)
      text += concat("  %", row, " = aten.rand stream=", row, " : f32[3]\n");
    return text;
  });
  CHECK(loop == "the step draws 2 times, with 5 times the rows 10 times");
}

}  // namespace
}  // namespace sfsdp::parallel::batch_order_test
