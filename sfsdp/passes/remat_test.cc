// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/remat.h"

#include <doctest/doctest.h>

#include <set>

#include "sfsdp/base/error.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/passes/registry.h"
#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::passes {
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
  CHECK_THROWS_WITH_AS(remat(graph, {.mode = "some"}, context), doctest::Contains("expected none, full or op"),
                       UserError);
}

}  // namespace
}  // namespace sfsdp::passes
