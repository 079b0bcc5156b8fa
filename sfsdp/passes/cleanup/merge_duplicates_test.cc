// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/cleanup/merge_duplicates.h"

#include <doctest/doctest.h>

#include "sfsdp/ir/parser.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/random_graph.h"

namespace sfsdp::passes::merge_duplicates_test {
namespace {

using testing::expect_pass;
using testing::expect_unchanged;

TEST_CASE("merge_duplicates: a weight is gathered once, and what depends on the copies follows") {
  expect_pass("merge_duplicates", R"(
    graph mesh [dp_shard=2] view local
      %w = param name=w : f32[2/dp_shard, 4]
      %x = input name=x : f32[2, 4] own(dp_shard)
    fwd:
      %w1 = all_gather %w axis=dp_shard dim=0 : f32[4, 4]
      %y1 = aten.mm %x, %w1 : f32[2, 4]
      %w2 = all_gather %w axis=dp_shard dim=0 : f32[4, 4]
      %y2 = aten.mm %x, %w2 : f32[2, 4]
      %z = aten.add.Tensor %y1, %y2 alpha=1 : f32[2, 4]
    bwd:
      %g = aten.neg %z bwd_of=%y2 : f32[2, 4]
      return %g, %w2
  )",
              R"(
    graph mesh [dp_shard=2] view local
      %w = param name=w : f32[2/dp_shard, 4]
      %x = input name=x : f32[2, 4] own(dp_shard)
    fwd:
      %w1 = all_gather %w axis=dp_shard dim=0 : f32[4, 4]
      %y1 = aten.mm %x, %w1 : f32[2, 4]
      %z = aten.add.Tensor %y1, %y1 alpha=1 : f32[2, 4]
    bwd:
      %g = aten.neg %z bwd_of=%y1 : f32[2, 4]
      return %g, %w1
  )");
}

TEST_CASE("merge_duplicates: a weight before and after its update are two, however often each is gathered") {
  expect_pass("merge_duplicates", R"(
    graph mesh [dp_shard=2] view local
      %w = param name=w : f32[2/dp_shard, 4]
    opt:
      %1 = all_gather %w axis=dp_shard dim=0 : f32[4, 4]
      %w.new = mul_scalar %w value=0.5 : f32[2/dp_shard, 4]
      %2 = all_gather %w.new axis=dp_shard dim=0 : f32[4, 4]
      %3 = all_gather %w.new axis=dp_shard dim=0 : f32[4, 4]
      %4 = all_gather %w axis=dp_shard dim=0 : f32[4, 4]
      return %1, %2, %3, %4
      carry %w = %w.new
  )",
              R"(
    graph mesh [dp_shard=2] view local
      %w = param name=w : f32[2/dp_shard, 4]
    opt:
      %1 = all_gather %w axis=dp_shard dim=0 : f32[4, 4]
      %w.new = mul_scalar %w value=0.5 : f32[2/dp_shard, 4]
      %2 = all_gather %w.new axis=dp_shard dim=0 : f32[4, 4]
      return %1, %2, %2, %1
      carry %w = %w.new
  )");
}

constexpr const char* kGatherAgain = R"(
    graph mesh [dp_shard=2] view local
      %w = param name=w : f32[2/dp_shard, 4]
    fwd:
      %w1 = all_gather %w axis=dp_shard dim=0 : f32[4, 4]
    bwd:
      %w2 = all_gather %w axis=dp_shard dim=0 : f32[4, 4]
      return %w1, %w2
  )";

TEST_CASE("merge_duplicates: leaves the gather of the backward, which was meant to be") {
  expect_unchanged("merge_duplicates", kGatherAgain);
}

TEST_CASE("merge_duplicates: leaves ops that differ in an attribute, an operand, their order or a type") {
  expect_unchanged("merge_duplicates", R"(
    graph mesh [a=2, b=2] view local
      %x = input name=x : f32[4] own(a)
      %y = input name=y : f32[4] own(a)
    fwd:
      %1 = all_reduce %x axis=a : f32[4]
      %2 = all_reduce %x axis=b : f32[4]
      %3 = all_reduce %x axis=a op=max : f32[4]
      %4 = aten.sub.Tensor %x, %y alpha=1 : f32[4]
      %5 = aten.sub.Tensor %y, %x alpha=1 : f32[4]
      %6 = aten.sub.Tensor %x, %y alpha=1.0 : f32[4]
      %7 = aten.cat [%x, %y] dim=0 : f32[8]
      %8 = aten.cat [%x], [%y] dim=0 : f32[8]
      %9 = cast %x : bf16[4]
      %10 = cast %x : f16[4]
      %11 = full value=0.0 : f32[4]
      %12 = full value=-0.0 : f32[4]
      return %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12
  )");
}

TEST_CASE("merge_duplicates: leaves random ops, starts and waits") {
  expect_unchanged("merge_duplicates", R"(
    graph mesh [a=2] view local
      %x = input name=x : f32[4] own(a)
    fwd:
      %r1 = aten.rand size=[4] : f32[4] at layers.0
      %r2 = aten.rand size=[4] : f32[4] at layers.1
      %s1 = all_reduce.start %x axis=a : async f32[4]
      %w1 = wait %s1 : f32[4]
      %s2 = all_reduce.start %x axis=a : async f32[4]
      %w2 = wait %s2 : f32[4]
      return %r1, %r2, %w1, %w2
  )");
}

TEST_CASE("merge_duplicates: leaves two values apart whose memory is carried or given away") {
  expect_unchanged("merge_duplicates", R"(
    graph mesh [] view local
      %p = param name=p : f32[4]
      %q = state name=q : f32[4]
      %one = input name=one : f32[]
    opt:
      %p.new = aten.neg %q : f32[4]
      %q.new = aten.neg %q : f32[4]
      %a = aten.relu %q : f32[4]
      %b = scale %a, %one donates=[0] : f32[4]
      %c = aten.relu %q : f32[4]
      return %b, %c
      carry %p = %p.new
      carry %q = %q.new
  )");
}

TEST_CASE("merge_duplicates: counts collectives and the bytes that are not sent") {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(R"(
    graph mesh [dp_shard=2] view local
      %w = param name=w : f32[2/dp_shard, 4]
    fwd:
      %w1 = all_gather %w axis=dp_shard dim=0 : f32[4, 4]
      %w2 = all_gather %w axis=dp_shard dim=0 : f32[4, 4]
      return %w1, %w2
  )"));
  const auto reports = run_passes(graph, parse_passes("merge_duplicates"));
  CHECK(reports[0].metrics.get("collectives_merged") == 1);
  CHECK(reports[0].metrics.get("bytes_saved") == 64);
  CHECK(reports[0].metrics.get("collectives_after") == 1);
}

TEST_CASE("merge_duplicates: random programs mean the same, and nothing changes twice") {
  int64_t merged = 0;
  const auto calls = parse_passes("merge_duplicates");
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const ir::Graph before = testing::random_program(seed);
    ir::Graph after = before.clone();
    merged += run_passes(after, calls)[0].metrics.get("ops_merged");
    CHECK_FALSE(run_passes(after, calls)[0].changed);
    REQUIRE_MESSAGE(testing::check_same_meaning(before, after, testing::Agreement::Bitwise) == "", "seed ", seed);
  }
  CHECK(merged > 300);
}

}  // namespace
}  // namespace sfsdp::passes::merge_duplicates_test
