// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/memory/remat.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/passes/registry.h"
#include "sfsdp/plan/memory_plan.h"
#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::passes::remat_test {
namespace {

using testing::expect_pass;
using testing::expect_unchanged;

// Two blocks: a large hidden value and its activation, then the small output that the next block is given.
constexpr const char* kTwoBlocks = R"(
    graph mesh [dp_shard=1] view local
      %w0 = param name=layers.0.w : f32[2, 8]
      %v0 = param name=layers.0.v : f32[8, 2]
      %w1 = param name=layers.1.w : f32[2, 8]
      %v1 = param name=layers.1.v : f32[8, 2]
      %x = input name=x : f32[3, 2]
    fwd:
      %h0 = aten.mm %x, %w0 : f32[3, 8]
      %a0 = aten.relu %h0 : f32[3, 8]
      %y0 = aten.mm %a0, %v0 : f32[3, 2]
      %n0 = aten.neg %y0 : f32[3, 2]
      %h1 = aten.mm %n0, %w1 : f32[3, 8]
      %a1 = aten.relu %h1 : f32[3, 8]
      %y1 = aten.mm %a1, %v1 : f32[3, 2]
    bwd:
      %g1 = aten.mul.Tensor %a1, %a1 : f32[3, 8]
      %g0 = aten.mul.Tensor %a0, %h0 : f32[3, 8]
      %gn = aten.mul.Tensor %n0, %y0 : f32[3, 2]
      return %y1, %g1, %g0, %gn
  )";

TEST_CASE("remat full: of a block only what it is given stays; repeated ops stand where they are first needed") {
  expect_pass("remat mode=full", kTwoBlocks, R"(
    graph mesh [dp_shard=1] view local
      %w0 = param name=layers.0.w : f32[2, 8]
      %v0 = param name=layers.0.v : f32[8, 2]
      %w1 = param name=layers.1.w : f32[2, 8]
      %v1 = param name=layers.1.v : f32[8, 2]
      %x = input name=x : f32[3, 2]
    fwd:
      %h0 = aten.mm %x, %w0 : f32[3, 8]
      %a0 = aten.relu %h0 : f32[3, 8]
      %y0 = aten.mm %a0, %v0 : f32[3, 2]
      %n0 = aten.neg %y0 : f32[3, 2]
      %h1 = aten.mm %n0, %w1 : f32[3, 8]
      %a1 = aten.relu %h1 : f32[3, 8]
      %y1 = aten.mm %a1, %v1 : f32[3, 2]
    bwd:
      %h1.again = aten.mm %n0, %w1 : f32[3, 8]
      %a1.again = aten.relu %h1.again : f32[3, 8]
      %g1 = aten.mul.Tensor %a1.again, %a1.again : f32[3, 8]
      %h0.again = aten.mm %x, %w0 : f32[3, 8]
      %a0.again = aten.relu %h0.again : f32[3, 8]
      %g0 = aten.mul.Tensor %a0.again, %h0.again : f32[3, 8]
      %y0.again = aten.mm %a0.again, %v0 : f32[3, 2]
      %gn = aten.mul.Tensor %n0, %y0.again : f32[3, 2]
      return %y1, %g1, %g0, %gn
  )");
}

// Scores that are made again in another way might choose other experts than those whose rows are kept.
TEST_CASE("remat full: what was chosen stays, and what it was chosen of is made again") {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(R"(
    graph mesh [dp_shard=1] view local
      %w0 = param name=layers.0.w : f32[2, 8]
      %w1 = param name=layers.1.w : f32[8, 8]
      %x = input name=x : f32[3, 2]
    fwd:
      %s = aten.mm %x, %w0 : f32[3, 8]
      %top, %ids = aten.topk %s k=2 : f32[3, 2], i64[3, 2]
      %y = aten.scatter.src %s, %ids, %top dim=1 : f32[3, 8]
      %z = aten.mm %y, %w1 : f32[3, 8]
    bwd:
      %g = aten.gather %s, %ids dim=1 : f32[3, 2]
      return %z, %g
  )"));
  run_passes(graph, parse_passes("remat mode=full"));
  const ir::Op& gather = *graph.find_value("g")->producer();
  CHECK(gather.operands[0]->name() == "s.again");
  CHECK(gather.operands[1]->name() == "ids");
  CHECK_FALSE(graph.find_value("ids.again"));
}

// The border is after %p, as %c is alive beside the sum.
TEST_CASE("remat full: a block is given the sum over tp of what the module before it makes, which is not made again") {
  expect_pass("remat mode=full", R"(
    graph mesh [tp=2] view local
      %tok = param name=tok : f32[3, 2]
      %v = param name=layers.0.v : f32[3, 2]
      %w = param name=layers.0.w : f32[2, 2]
      %x = input name=x : f32[3, 2]
    fwd:
      %p = aten.mul.Tensor %x, %tok : f32[3, 2] at tok
      %c = aten.neg %x : f32[3, 2]
      %s = all_reduce %p axis=tp : f32[3, 2] at tok
      %a = aten.mul.Tensor %s, %v : f32[3, 2] at layers.0
      %b = aten.add.Tensor %a, %c : f32[3, 2] at layers.0
      %h = aten.mm %b, %w : f32[3, 2] at layers.0
    bwd:
      %g = aten.mul.Tensor %a, %b : f32[3, 2] at layers.0
      return %h, %g
  )",
              R"(
    graph mesh [tp=2] view local
      %tok = param name=tok : f32[3, 2]
      %v = param name=layers.0.v : f32[3, 2]
      %w = param name=layers.0.w : f32[2, 2]
      %x = input name=x : f32[3, 2]
    fwd:
      %p = aten.mul.Tensor %x, %tok : f32[3, 2] at tok
      %c = aten.neg %x : f32[3, 2]
      %s = all_reduce %p axis=tp : f32[3, 2] at tok
      %a = aten.mul.Tensor %s, %v : f32[3, 2] at layers.0
      %b = aten.add.Tensor %a, %c : f32[3, 2] at layers.0
      %h = aten.mm %b, %w : f32[3, 2] at layers.0
    bwd:
      %a.again = aten.mul.Tensor %s, %v : f32[3, 2] at layers.0
      %c.again = aten.neg %x : f32[3, 2]
      %b.again = aten.add.Tensor %a.again, %c.again : f32[3, 2] at layers.0
      %g = aten.mul.Tensor %a.again, %b.again : f32[3, 2] at layers.0
      return %h, %g
  )");
}

TEST_CASE("remat op: products stay, what is between them is computed again") {
  expect_pass("remat mode=op", kTwoBlocks, R"(
    graph mesh [dp_shard=1] view local
      %w0 = param name=layers.0.w : f32[2, 8]
      %v0 = param name=layers.0.v : f32[8, 2]
      %w1 = param name=layers.1.w : f32[2, 8]
      %v1 = param name=layers.1.v : f32[8, 2]
      %x = input name=x : f32[3, 2]
    fwd:
      %h0 = aten.mm %x, %w0 : f32[3, 8]
      %a0 = aten.relu %h0 : f32[3, 8]
      %y0 = aten.mm %a0, %v0 : f32[3, 2]
      %n0 = aten.neg %y0 : f32[3, 2]
      %h1 = aten.mm %n0, %w1 : f32[3, 8]
      %a1 = aten.relu %h1 : f32[3, 8]
      %y1 = aten.mm %a1, %v1 : f32[3, 2]
    bwd:
      %a1.again = aten.relu %h1 : f32[3, 8]
      %g1 = aten.mul.Tensor %a1.again, %a1.again : f32[3, 8]
      %a0.again = aten.relu %h0 : f32[3, 8]
      %g0 = aten.mul.Tensor %a0.again, %h0 : f32[3, 8]
      %gn = aten.mul.Tensor %n0, %y0 : f32[3, 2]
      return %y1, %g1, %g0, %gn
  )");
}

TEST_CASE("remat every=2: only the first of two blocks") {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(kTwoBlocks));
  const auto reports = run_passes(graph, parse_passes("remat mode=full every=2"));
  CHECK(reports[0].metrics.get("blocks") == 2);
  CHECK(reports[0].metrics.get("ops_repeated") == 3);  // h0, a0, y0
  CHECK(graph.find_value("h1.again") == nullptr);
  CHECK(graph.find_value("h0.again") != nullptr);
}

TEST_CASE("remat blocks=layers.1: only the block of that path; a path of none is named") {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(kTwoBlocks));
  run_passes(graph, parse_passes("remat mode=full blocks=layers.1"));
  CHECK(graph.find_value("h0.again") == nullptr);
  CHECK(graph.find_value("h1.again") != nullptr);
  ir::Graph other = ir::parse_or_throw(testing::dedent(kTwoBlocks));
  CHECK_THROWS_WITH_AS(run_passes(other, parse_passes("remat mode=full blocks=layers.2")),
                       doctest::Contains("no block has the path layers.2\n  expected some of layers.0, layers.1"),
                       UserError);
}

TEST_CASE("remat: a gather that a repeated op needs is repeated, and the bucket has one") {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(R"(
    graph mesh [dp_shard=2] view local
      %w = param name=layers.0.w rows=2 : f32[1/dp_shard, 2]
      %v = param name=layers.0.v rows=2 : f32[1/dp_shard, 2]
      %x = input name=x : f32[2, 2] own(dp_shard)
    fwd:
      %w.full = all_gather %w axis=dp_shard dim=0 : f32[2, 2]
      %h = aten.mm %x, %w.full : f32[2, 2]
      %v.full = all_gather %v axis=dp_shard dim=0 : f32[2, 2]
      %y = aten.mm %h, %v.full : f32[2, 2]
    bwd:
      %v.full_1 = all_gather %v axis=dp_shard dim=0 : f32[2, 2]
      %g = aten.mm %h, %v.full_1 : f32[2, 2]
      return %y, %g
  )"));
  run_passes(graph, parse_passes("remat mode=full, wrap, bucket"));
  int gathers = 0;
  for (const auto& op : graph.ops()) gathers += op->is("all_gather") ? 1 : 0;
  CHECK(gathers == 2);  // one per region
  for (const auto& op : graph.ops())
    if (op->section == ir::Section::Bwd)
      for (const ir::Value* operand : op->operands) {
        const ir::Op& from = *ir::storage_of(operand)->producer();
        CHECK((from.section == ir::Section::Bwd || ir::is_root(from)));  // nothing of forward is kept
      }
}

// Matrices of 16 KiB, two of them parameters whose gathered flat bucket stays for backward. Alive with mode full, in
// matrices: %h.again: x, bucket (2), y, ga and itself; %a.again: the same with a.again for x; %gv: bucket, y, ga, a.again and
// itself: 6 each, or 5 where %a.again lies in the memory of %h.again, and %gv in that of %ga. Mode op keeps h for x, which nothing
// reads any more: 5.
TEST_CASE("remat: parameters that stay gathered for backward are not gathered again; peak bytes worked out by hand") {
  for (const char* mode : {"full", "op"}) {
    CAPTURE(mode);
    ir::Graph graph = ir::parse_or_throw(testing::dedent(R"(
      graph mesh [dp_shard=2] view local
        %w = param name=layers.0.w rows=64 : f32[32/dp_shard, 64]
        %v = param name=layers.0.v rows=64 : f32[32/dp_shard, 64]
        %x = input name=x : f32[64, 64] own(dp_shard)
      fwd:
        %w.full = all_gather %w axis=dp_shard dim=0 : f32[64, 64]
        %h = aten.mm %x, %w.full : f32[64, 64]
        %a = aten.relu %h : f32[64, 64]
        %v.full = all_gather %v axis=dp_shard dim=0 : f32[64, 64]
        %y = aten.mm %a, %v.full : f32[64, 64]
      bwd:
        %ga = aten.mm %y, %v.full : f32[64, 64]
        %gv = aten.mul.Tensor %ga, %a : f32[64, 64]
        %gx = aten.mm %gv, %w.full : f32[64, 64]
        return %y, %gx
    )"));
    run_passes(graph, parse_passes(concat("remat mode=", mode, ", wrap, bucket")));
    CHECK(std::ranges::count_if(graph.ops(), [](const auto& op) { return op->is("all_gather"); }) == 1);
    CHECK(graph.find_value("a.again") != nullptr);
    const plan::MemoryPlan memory = plan::plan_memory(graph);
    CHECK(memory.state_bytes == 16384);
    CHECK(memory.live_bytes == (mode == std::string("full") ? 6 : 5) * 16384);
  }
}

TEST_CASE("remat memory_budget: the cheapest work first, to the budget") {
  // Backward reads h0, a0, y0 and a1: 96 + 96 + 24 + 96 bytes. a0 again is one relu, a1 again would keep h1 instead.
  ir::Graph graph = ir::parse_or_throw(testing::dedent(kTwoBlocks));
  const ir::Graph before = graph.clone();
  const auto reports = run_passes(graph, parse_passes("remat mode=memory_budget memory_budget=0.77"));
  CHECK(reports[0].metrics.get("ops_repeated") == 1);
  CHECK(reports[0].metrics.get("flops_repeated") == 0);
  CHECK(reports[0].metrics.get("bytes_kept") == 240);  // 216, and n0, which the second block is given
  CHECK(graph.find_value("a0.again") != nullptr);
  CHECK(testing::check_same_meaning(before, graph, testing::Agreement::Bitwise) == "");
}

// Blocks of products, sums and activations that read what stands before them in the block or what the block is given;
// a backward that reads half of it all.
std::string random_blocks(uint64_t seed) {
  std::mt19937_64 rng(seed);
  const auto below = [&](int n) { return static_cast<int>(rng() % static_cast<uint64_t>(n)); };
  std::string params, forward, backward, results;
  std::string given = "%x";
  for (int b = 0; b < 4; ++b) {
    params += concat("  %w", b, " = param name=layers.", b, ".w : f32[4, 4]\n");
    std::vector<std::string> values = {given};
    const auto add = [&](const std::string& text) {
      const std::string name = concat("%b", b, "v", values.size());
      forward += concat("  ", name, " = ", text, " : f32[4, 4]\n");
      values.push_back(name);
    };
    add(concat("aten.mm ", given, ", %w", b));
    for (int i = 0; i < 7; ++i) {
      const std::string one = values[static_cast<size_t>(below(static_cast<int>(values.size())))];
      const std::string two = values[static_cast<size_t>(below(static_cast<int>(values.size())))];
      const int kind = below(4);
      add(kind == 0   ? concat("aten.mm ", one, ", ", two)
          : kind == 1 ? concat("aten.mul.Tensor ", one, ", ", two)
          : kind == 2 ? concat("aten.relu ", one)
                      : concat("aten.silu ", one));
    }
    add(concat("aten.mm ", values.back(), ", %w", b));
    for (size_t v = 1; v + 1 < values.size(); ++v)
      if (below(2) == 0) {
        const std::string name = concat("%g", b, "v", v);
        backward = concat("  ", name, " = aten.neg ", values[v], " : f32[4, 4]\n") + backward;
        results += concat(", ", name);
      }
    given = values.back();
  }
  return concat("graph mesh [dp_shard=1] view local\n", params, "  %x = input name=x : f32[4, 4]\nfwd:\n", forward,
                "bwd:\n", backward, "  return ", given, results, "\n");
}

TEST_CASE(
    "remat memory_budget: 1 changes nothing, 0 keeps no more than full, more budget keeps no less and runs no more") {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    const ir::Graph original = ir::parse_or_throw(random_blocks(seed));
    const auto run = [&](const std::string& options) {
      ir::Graph graph = original.clone();
      const auto reports = run_passes(graph, parse_passes("remat " + options));
      CHECK(testing::check_same_meaning(original, graph, testing::Agreement::Bitwise) == "");
      return std::pair(reports[0].metrics, ir::print(graph));
    };
    const auto [whole, text] = run("mode=memory_budget memory_budget=1");
    CHECK(text == ir::print(original));
    const int64_t least = run("mode=memory_budget memory_budget=0").first.get("bytes_kept");
    CHECK(least <= run("mode=full").first.get("bytes_kept"));
    const auto all = static_cast<double>(whole.get("bytes_kept"));
    Metrics before = whole;
    for (const char* budget : {"0.9", "0.7", "0.5", "0.35", "0.2", "0.1", "0"}) {
      CAPTURE(budget);
      const Metrics now = run(concat("mode=memory_budget memory_budget=", budget)).first;
      CHECK(now.get("bytes_kept") <= before.get("bytes_kept"));
      CHECK(now.get("flops_repeated") >= before.get("flops_repeated"));
      CHECK(now.get("ops_repeated") >= before.get("ops_repeated"));
      // What is left with budget 0 is what blocks are given: it is kept beside the budget.
      CHECK(static_cast<double>(now.get("bytes_kept") - least) <= std::stod(budget) * all);
      before = now;
    }
    CHECK(before.get("flops_repeated") > 0);
  }
}

TEST_CASE("remat: its post-condition finds an op that reads what is not kept, and one repeated too early") {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(kTwoBlocks));
  run_passes(graph, parse_passes("remat mode=full every=2"));
  std::unordered_set<const ir::Value*> not_kept;
  std::unordered_set<const ir::Op*> repeated;
  for (const char* name : {"h0", "a0", "y0"}) {
    not_kept.insert(graph.find_value(name));
    repeated.insert(graph.find_value(std::string(name) + ".again")->producer());
  }
  CHECK_NOTHROW(expect_repeated(graph, not_kept, repeated));
  ir::Value*& kept = graph.find_value("g0")->producer()->operands[1];
  ir::Value* const again = std::exchange(kept, graph.find_value("h0"));
  CHECK_THROWS_WITH_AS(expect_repeated(graph, not_kept, repeated),
                       doctest::Contains("remat: aten.mul.Tensor %g0 reads %h0, which is not kept"), InternalError);
  kept = again;
  ir::Op* const early = graph.find_value("h0.again")->producer();
  std::vector<ir::Op*> order;
  for (const auto& op : graph.ops()) {
    if (op.get() == graph.find_value("g1")->producer()) order.push_back(early);
    if (op.get() != early) order.push_back(op.get());
  }
  REQUIRE(graph.set_order(order));
  CHECK_THROWS_WITH_AS(expect_repeated(graph, not_kept, repeated),
                       doctest::Contains("remat: %h0.again in bwd is repeated before what needs it"), InternalError);
}

TEST_CASE("remat: a graph without blocks stays, unknown modes are refused") {
  expect_unchanged("remat mode=none", kTwoBlocks);
  expect_unchanged("remat mode=full", R"(
    graph mesh [dp_shard=1] view local
      %w = param name=w : f32[2, 2]
    fwd:
      %y = aten.mm %w, %w : f32[2, 2]
      %z = aten.relu %y : f32[2, 2]
    bwd:
      %g = aten.neg %z : f32[2, 2]
      return %g
  )");
  ir::Graph graph;
  PassContext context;
  CHECK_THROWS_WITH_AS(parse_passes("remat mode=some"), doctest::Contains("one of: none full op memory_budget"),
                       UserError);
  CHECK_THROWS_WITH_AS(remat(graph, {.mode = RematMode::MemoryBudget, .memory_budget = 1.5}, context),
                       doctest::Contains("expected a number from 0 to 1"), UserError);
}

}  // namespace
}  // namespace sfsdp::passes::remat_test
