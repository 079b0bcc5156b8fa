// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/cleanup/hoist_casts.h"

#include <doctest/doctest.h>

#include "sfsdp/ir/parser.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::passes::hoist_casts_test {
namespace {

using testing::expect_pass;
using testing::expect_unchanged;

constexpr const char* kCast = R"(
    graph mesh [dp_shard=2] view local
      %w = param name=w rows=3 : f32[2/dp_shard~, 4]
      %x = input name=x : bf16[2, 3] own(dp_shard)
    fwd:
      %full = all_gather %w axis=dp_shard dim=0 : f32[4, 4] at layer
      %rows = narrow %full dim=0 length=3 start=0 : f32[3, 4] at layer
      %1 = cast %rows : bf16[3, 4] at layer
      %2 = aten._to_copy %rows dtype=bf16 : bf16[3, 4]
      %y = aten.mm %x, %1 : bf16[2, 4]
      %z = aten.mm %x, %2 : bf16[2, 4]
    bwd:
      %again = all_gather %w axis=dp_shard dim=0 : f32[4, 4] at layer
      %3 = cast %again : bf16[4, 4] at layer
      %g = aten.t %3 : bf16[4, 4]{1, 4}
      %w.new = aten.neg %w : f32[2/dp_shard~, 4]
      return %y, %z, %g
      carry %w = %w.new
  )";

TEST_CASE("hoist_casts: the shard is cast, the wire carries the smaller dtype, in every region") {
  expect_pass("hoist_casts", kCast, R"(
    graph mesh [dp_shard=2] view local
      %w = param name=w rows=3 : f32[2/dp_shard~, 4]
      %x = input name=x : bf16[2, 3] own(dp_shard)
    fwd:
      %w.cast = cast %w : bf16[2/dp_shard~, 4] at layer
      %full = all_gather %w.cast axis=dp_shard dim=0 : bf16[4, 4] at layer
      %rows = narrow %full dim=0 length=3 start=0 : bf16[3, 4] at layer
      %y = aten.mm %x, %rows : bf16[2, 4]
      %z = aten.mm %x, %rows : bf16[2, 4]
    bwd:
      %w.cast_1 = cast %w : bf16[2/dp_shard~, 4] at layer
      %again = all_gather %w.cast_1 axis=dp_shard dim=0 : bf16[4, 4] at layer
      %g = aten.t %again : bf16[4, 4]{1, 4}
      %w.new = aten.neg %w : f32[2/dp_shard~, 4]
      return %y, %z, %g
      carry %w = %w.new
  )");
}

TEST_CASE("hoist_casts: counts gathers and the bytes that are not sent") {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(kCast));
  const auto reports = run_passes(graph, parse_passes("hoist_casts"));
  CHECK(reports[0].metrics.get("gathers_narrowed") == 2);
  CHECK(reports[0].metrics.get("bytes_saved") == 64);
  CHECK(reports[0].metrics.get("collective_bytes_after") == 64);
}

TEST_CASE("hoist_casts: leaves casts to more bytes, gathers read otherwise too, two dtypes, and memory of its own") {
  expect_unchanged("hoist_casts", R"(
    graph mesh [a=2] view local
      %w = param name=w : bf16[2/a]
      %p = param name=p : f32[2/a]
      %q = param name=q : f32[2/a]
      %r = param name=r : f32[2/a]
      %s = param name=s : f32[2/a]
      %k = param name=k : bf16[4]
    fwd:
      %1 = all_gather %w axis=a dim=0 : bf16[4]
      %wide = cast %1 : f32[4]
      %2 = all_gather %p axis=a dim=0 : f32[4]
      %p.low = cast %2 : bf16[4]
      %p.read = aten.neg %2 : f32[4]
      %3 = all_gather %q axis=a dim=0 : f32[4]
      %q.low = cast %3 : bf16[4]
      %q.half = cast %3 : f16[4]
      %4 = all_gather %r axis=a dim=0 : f32[4]
      %r.low = cast %4 : bf16[4]
      %5 = all_gather %s axis=a dim=0 : f32[4]
      %k.new = cast %5 : bf16[4]
    bwd:
      %6 = all_gather %r axis=a dim=0 : f32[4]
      %r.read = aten.neg %6 : f32[4]
      return %wide, %p.low, %p.read, %q.low, %q.half, %r.low, %r.read
      carry %k = %k.new
  )");
}

}  // namespace
}  // namespace sfsdp::passes::hoist_casts_test
