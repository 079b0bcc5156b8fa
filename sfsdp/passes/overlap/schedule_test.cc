// SPDX-License-Identifier: BSD-3-Clause
// split_collectives, prefetch_gathers and sink_waits: what they move, and that nothing else moves.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/passes/overlap/prefetch_gathers.h"
#include "sfsdp/passes/overlap/sink_waits.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/passes/registry.h"
#include "sfsdp/plan/step_plan.h"
#include "sfsdp/plan/verify/verify_plan.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/sharded_step.h"

namespace sfsdp::passes::schedule_test {
namespace {

using testing::expect_pass;
using testing::expect_unchanged;

TEST_CASE("split_collectives: start, and wait right after it; clip's collectives stay") {
  expect_pass("split_collectives", R"(
    graph mesh [dp_shard=2] view local
      %w = param name=w : f32[2/dp_shard, 4]
      %x = input name=x : f32[2, 4] own(dp_shard)
    fwd:
      %full = all_gather %w axis=dp_shard dim=0 : f32[4, 4] at a
      %y = aten.mm %x, %full : f32[2, 4] at a
    bwd:
      %g = aten.neg %full bwd_of=%y : f32[4, 4] at a
      %rs = reduce_scatter %g axis=dp_shard dim=0 : f32[2, 4] at a
    clip:
      %n = all_reduce %rs axis=dp_shard : f32[2, 4]
      return %y, %n
  )",
              R"(
    graph mesh [dp_shard=2] view local
      %w = param name=w : f32[2/dp_shard, 4]
      %x = input name=x : f32[2, 4] own(dp_shard)
    fwd:
      %full.start = all_gather.start %w axis=dp_shard dim=0 : async f32[4, 4] at a
      %full = wait %full.start : f32[4, 4] at a
      %y = aten.mm %x, %full : f32[2, 4] at a
    bwd:
      %g = aten.neg %full bwd_of=%y : f32[4, 4] at a
      %rs.start = reduce_scatter.start %g axis=dp_shard dim=0 : async f32[2, 4] at a
      %rs = wait %rs.start : f32[2, 4] at a
    clip:
      %n = all_reduce %rs axis=dp_shard : f32[2, 4]
      return %y, %n
  )");
}

// Three units; each gathers (the second casts its shard first) and computes.
constexpr const char* kForward = R"(
    graph mesh [dp_shard=2] view local
      %a = param name=a : f32[2/dp_shard]
      %b = param name=b : f32[2/dp_shard]
      %c = param name=c : f32[2/dp_shard]
    fwd:
      %a.start = all_gather.start %a axis=dp_shard dim=0 : async f32[4]
      %a.full = wait %a.start : f32[4]
      %a.out = aten.neg %a.full : f32[4]
      %b.cast = cast %b : bf16[2/dp_shard]
      %b.start = all_gather.start %b.cast axis=dp_shard dim=0 : async bf16[4]
      %b.full = wait %b.start : bf16[4]
      %b.out = aten.neg %b.full : bf16[4]
      %c.start = all_gather.start %c axis=dp_shard dim=0 : async f32[4]
      %c.full = wait %c.start : f32[4]
      %c.out = aten.neg %c.full : f32[4]
      return %a.out, %b.out, %c.out
  )";

TEST_CASE("prefetch_gathers: before the wait of the gather before it") {
  expect_pass("prefetch_gathers", kForward, R"(
    graph mesh [dp_shard=2] view local
      %a = param name=a : f32[2/dp_shard]
      %b = param name=b : f32[2/dp_shard]
      %c = param name=c : f32[2/dp_shard]
    fwd:
      %a.start = all_gather.start %a axis=dp_shard dim=0 : async f32[4]
      %b.cast = cast %b : bf16[2/dp_shard]
      %b.start = all_gather.start %b.cast axis=dp_shard dim=0 : async bf16[4]
      %a.full = wait %a.start : f32[4]
      %a.out = aten.neg %a.full : f32[4]
      %c.start = all_gather.start %c axis=dp_shard dim=0 : async f32[4]
      %b.full = wait %b.start : bf16[4]
      %b.out = aten.neg %b.full : bf16[4]
      %c.full = wait %c.start : f32[4]
      %c.out = aten.neg %c.full : f32[4]
      return %a.out, %b.out, %c.out
  )");
}

TEST_CASE("prefetch_gathers: after the wait, and two ahead") {
  expect_pass("prefetch_gathers forward=after depth=2", kForward, R"(
    graph mesh [dp_shard=2] view local
      %a = param name=a : f32[2/dp_shard]
      %b = param name=b : f32[2/dp_shard]
      %c = param name=c : f32[2/dp_shard]
    fwd:
      %a.start = all_gather.start %a axis=dp_shard dim=0 : async f32[4]
      %a.full = wait %a.start : f32[4]
      %b.cast = cast %b : bf16[2/dp_shard]
      %b.start = all_gather.start %b.cast axis=dp_shard dim=0 : async bf16[4]
      %c.start = all_gather.start %c axis=dp_shard dim=0 : async f32[4]
      %a.out = aten.neg %a.full : f32[4]
      %b.full = wait %b.start : bf16[4]
      %b.out = aten.neg %b.full : bf16[4]
      %c.full = wait %c.start : f32[4]
      %c.out = aten.neg %c.full : f32[4]
      return %a.out, %b.out, %c.out
  )");
}

TEST_CASE("prefetch_gathers: the first of backward starts where backward begins") {
  const auto step = [](const char* early, const char* late) {
    return concat(R"(
    graph mesh [dp_shard=2] view local
      %w = param name=w : f32[2/dp_shard]
      %x = input name=x : f32[4] own(dp_shard)
    fwd:
      %y = aten.neg %x : f32[4]
    bwd:)",
                  early, R"(
      %g = aten.neg %y bwd_of=%y : f32[4])",
                  late, R"(
      %w.full = wait %w.start : f32[4]
      %h = aten.add.Tensor %g, %w.full alpha=1 : f32[4]
      return %h
  )");
  };
  const char* const start = "\n      %w.start = all_gather.start %w axis=dp_shard dim=0 : async f32[4]";
  expect_pass("prefetch_gathers", step("", start), step(start, ""));
  expect_unchanged("prefetch_gathers depth=0", step("", start));
}

TEST_CASE("prefetch_gathers: units of any size keep to the bound that the plan's verifier is given") {
  std::vector<testing::Param> params;
  for (const int64_t rows : {2, 40, 6, 6, 30, 4, 50, 2, 8})
    params.push_back({concat("layers.", params.size(), ".w"), rows, 4});
  const auto errors = [&](int64_t depth, const std::string& where, int64_t bytes, int64_t bound) {
    ir::Graph graph = ir::parse_or_throw(testing::sharded_step_text(2, params));
    run_passes(graph, parse_passes(concat("wrap, bucket alignment=1, split_collectives, prefetch_gathers depth=", depth,
                                          " forward=", where, " backward=", where, " max_bytes=", bytes)));
    const auto all = plan::verify_plan(plan::make_plan(graph.clone()), {.prefetch_bytes = bound});
    return std::ranges::count_if(
        all, [](const std::string& e) { return e.find("bytes of gathers are in flight") != std::string::npos; });
  };
  for (const int64_t depth : {1, 2, 4})
    for (const std::string where : {"before", "after"})
      for (const int64_t bytes : {64, 160, 500, 900, 2000}) {
        CAPTURE(depth);
        CAPTURE(where);
        CAPTURE(bytes);
        CHECK(errors(depth, where, bytes, bytes) == 0);
      }
  CHECK(errors(4, "before", 2000, 900) > 0);
}

TEST_CASE("prefetch_gathers: a bound on bytes holds starts back; depth 0 and gathers of activations stay") {
  // 16 bytes may be in flight besides one: c (16) goes ahead of b's wait only
  expect_pass("prefetch_gathers depth=2 max_bytes=16", kForward, R"(
    graph mesh [dp_shard=2] view local
      %a = param name=a : f32[2/dp_shard]
      %b = param name=b : f32[2/dp_shard]
      %c = param name=c : f32[2/dp_shard]
    fwd:
      %a.start = all_gather.start %a axis=dp_shard dim=0 : async f32[4]
      %b.cast = cast %b : bf16[2/dp_shard]
      %b.start = all_gather.start %b.cast axis=dp_shard dim=0 : async bf16[4]
      %a.full = wait %a.start : f32[4]
      %a.out = aten.neg %a.full : f32[4]
      %c.start = all_gather.start %c axis=dp_shard dim=0 : async f32[4]
      %b.full = wait %b.start : bf16[4]
      %b.out = aten.neg %b.full : bf16[4]
      %c.full = wait %c.start : f32[4]
      %c.out = aten.neg %c.full : f32[4]
      return %a.out, %b.out, %c.out
  )");
  expect_unchanged("prefetch_gathers depth=0", kForward);
  expect_unchanged("prefetch_gathers", R"(
    graph mesh [dp_shard=2] view local
      %a = param name=a : f32[2/dp_shard]
    fwd:
      %a.start = all_gather.start %a axis=dp_shard dim=0 : async f32[4]
      %a.full = wait %a.start : f32[4]
      %x = view %a.full offset=0 : f32[2]
      %x.start = all_gather.start %x axis=dp_shard dim=0 : async f32[4]
      %x.full = wait %x.start : f32[4]
      return %x.full
  )");
}

TEST_CASE("prefetch_gathers: a pack that reads a shard twice, and a gather of backward that already leads it") {
  expect_pass("prefetch_gathers", R"(
    graph mesh [dp_shard=2] view local
      %a = param name=a : f32[2/dp_shard]
      %b = param name=b : f32[2/dp_shard]
    fwd:
      %a.start = all_gather.start %a axis=dp_shard dim=0 : async f32[4]
      %a.full = wait %a.start : f32[4]
      %b.cast = cast %b : bf16[2/dp_shard]
      %b.pack = pack [%b.cast, %b.cast] offsets=[0, 2] : bf16[4]
      %b.start = all_gather.start %b.pack axis=dp_shard dim=0 : async bf16[8]
      %b.full = wait %b.start : bf16[8]
      return %a.full, %b.full
  )",
              R"(
    graph mesh [dp_shard=2] view local
      %a = param name=a : f32[2/dp_shard]
      %b = param name=b : f32[2/dp_shard]
    fwd:
      %a.start = all_gather.start %a axis=dp_shard dim=0 : async f32[4]
      %b.cast = cast %b : bf16[2/dp_shard]
      %b.pack = pack [%b.cast, %b.cast] offsets=[0, 2] : bf16[4]
      %b.start = all_gather.start %b.pack axis=dp_shard dim=0 : async bf16[8]
      %a.full = wait %a.start : f32[4]
      %b.full = wait %b.start : bf16[8]
      return %a.full, %b.full
  )");
  // %b is first in line where backward begins, %a is needed first.
  expect_pass("prefetch_gathers", R"(
    graph mesh [dp_shard=2] view local
      %a = param name=a : f32[2/dp_shard]
      %b = param name=b : f32[2/dp_shard]
    bwd:
      %b.start = all_gather.start %b axis=dp_shard dim=0 : async f32[4]
      %a.start = all_gather.start %a axis=dp_shard dim=0 : async f32[4]
      %a.full = wait %a.start : f32[4]
      %b.full = wait %b.start : f32[4]
      return %a.full, %b.full
  )",
              R"(
    graph mesh [dp_shard=2] view local
      %a = param name=a : f32[2/dp_shard]
      %b = param name=b : f32[2/dp_shard]
    bwd:
      %a.start = all_gather.start %a axis=dp_shard dim=0 : async f32[4]
      %a.full = wait %a.start : f32[4]
      %b.start = all_gather.start %b axis=dp_shard dim=0 : async f32[4]
      %b.full = wait %b.start : f32[4]
      return %a.full, %b.full
  )");
  // The shard's cast is forward's, the start leads backward already.
  expect_unchanged("prefetch_gathers", R"(
    graph mesh [dp_shard=2] view local
      %a = param name=a : f32[2/dp_shard]
    fwd:
      %a.cast = cast %a : bf16[2/dp_shard]
    bwd:
      %a.start = all_gather.start %a.cast axis=dp_shard dim=0 : async bf16[4]
      %a.full = wait %a.start : bf16[4]
      return %a.full
  )");
}

constexpr const char* kBackward = R"(
    graph mesh [dp_shard=2] view local
      %x = input name=x : f32[4] own(dp_shard)
    bwd:
      %a = aten.neg %x : f32[4]
      %a.start = reduce_scatter.start %a axis=dp_shard dim=0 : async f32[2]
      %a.rs = wait %a.start : f32[2]
      %a.acc = accumulate %a.rs : f32[2]
      %b = aten.neg %a : f32[4]
      %b.start = reduce_scatter.start %b axis=dp_shard dim=0 : async f32[2]
      %b.rs = wait %b.start : f32[2]
      %b.acc = accumulate %b.rs : f32[2]
      %c = aten.neg %b : f32[4]
    clip:
      %n = aten.add.Tensor %a.acc, %b.acc alpha=1 : f32[2]
      return %n, %c
  )";

TEST_CASE("sink_waits: each wait goes to the next start, the last to the end of backward") {
  expect_pass("sink_waits", kBackward, R"(
    graph mesh [dp_shard=2] view local
      %x = input name=x : f32[4] own(dp_shard)
    bwd:
      %a = aten.neg %x : f32[4]
      %a.start = reduce_scatter.start %a axis=dp_shard dim=0 : async f32[2]
      %b = aten.neg %a : f32[4]
      %a.rs = wait %a.start : f32[2]
      %a.acc = accumulate %a.rs : f32[2]
      %b.start = reduce_scatter.start %b axis=dp_shard dim=0 : async f32[2]
      %c = aten.neg %b : f32[4]
      %b.rs = wait %b.start : f32[2]
      %b.acc = accumulate %b.rs : f32[2]
    clip:
      %n = aten.add.Tensor %a.acc, %b.acc alpha=1 : f32[2]
      return %n, %c
  )");
  expect_pass("sink_waits next=after", kBackward, R"(
    graph mesh [dp_shard=2] view local
      %x = input name=x : f32[4] own(dp_shard)
    bwd:
      %a = aten.neg %x : f32[4]
      %a.start = reduce_scatter.start %a axis=dp_shard dim=0 : async f32[2]
      %b = aten.neg %a : f32[4]
      %b.start = reduce_scatter.start %b axis=dp_shard dim=0 : async f32[2]
      %a.rs = wait %a.start : f32[2]
      %a.acc = accumulate %a.rs : f32[2]
      %c = aten.neg %b : f32[4]
      %b.rs = wait %b.start : f32[2]
      %b.acc = accumulate %b.rs : f32[2]
    clip:
      %n = aten.add.Tensor %a.acc, %b.acc alpha=1 : f32[2]
      return %n, %c
  )");
}

TEST_CASE("sink_waits: one buffer is given back before the next is packed") {
  const auto step = [](const char* early, const char* late) {
    return concat(R"(
    graph mesh [dp_shard=2] view local
      %x = input name=x : f32[4] own(dp_shard)
    bwd:
      %a = pack [%x] offsets=[0] : f32[4]
      %a.start = reduce_scatter.start %a axis=dp_shard dim=0 : async f32[2])",
                  early, R"(
      %y = aten.neg %x : f32[4])",
                  late, R"(
      %b = pack [%y] offsets=[0] : f32[4]
      %b.start = reduce_scatter.start %b axis=dp_shard dim=0 : async f32[2]
      %b.rs = wait %b.start : f32[2]
    clip:
      %n = aten.add.Tensor %a.rs, %b.rs alpha=1 : f32[2]
      return %n
  )");
  };
  const char* const wait = "\n      %a.rs = wait %a.start : f32[2]";
  expect_pass("sink_waits", step(wait, ""), step("", wait));
}

TEST_CASE("sink_waits: a reduction that backward needs is waited for where it is") {
  expect_unchanged("sink_waits", R"(
    graph mesh [tp=2] view local
      %x = input name=x : f32[4] own(tp)
    bwd:
      %start = all_reduce.start %x axis=tp : async f32[4]
      %sum = wait %start : f32[4]
      %y = aten.neg %sum : f32[4]
      %z = aten.neg %y : f32[4]
      return %z
  )");
  // A reader of another section stands before the end of backward.
  expect_unchanged("sink_waits", R"(
    graph mesh [dp_shard=2] view local
      %x = input name=x : f32[4] own(dp_shard)
    bwd:
      %a.start = reduce_scatter.start %x axis=dp_shard dim=0 : async f32[2]
      %a = wait %a.start : f32[2]
    loss:
      %l = aten.sum %a : f32[]
    bwd:
      %y = aten.neg %x : f32[4]
      %b.start = reduce_scatter.start %y axis=dp_shard dim=0 : async f32[2]
      %b = wait %b.start : f32[2]
      return %l, %b
  )");
  expect_unchanged("sink_waits depth=0", kBackward);
}

// Post-conditions: what a pass left, with one op moved, is refused.
//   moved: puts the op of the first value before that of the second
using Expectation = std::function<void(const ir::Graph&)>;
void expect_refused(const ir::Graph& good, const std::pair<const char*, const char*>& moved,
                    const Expectation& expectation, const char* what) {
  CAPTURE(moved.first);
  CAPTURE(moved.second);
  CHECK_NOTHROW(expectation(good));
  ir::Graph graph = good.clone();
  std::vector<ir::Op*> order;
  for (const auto& op : graph.ops()) {
    if (op->result() == graph.find_value(moved.second)) order.push_back(graph.find_value(moved.first)->producer());
    if (op->result() != graph.find_value(moved.first)) order.push_back(op.get());
  }
  REQUIRE(graph.set_order(order));
  CHECK_THROWS_WITH_AS(expectation(graph), doctest::Contains(what), InternalError);
}

ir::Graph after(const std::string& passes, const std::string& text) {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(text));
  run_passes(graph, parse_passes(passes));
  return graph;
}

TEST_CASE("prefetch_gathers: its post-condition finds a start that is late, early or over the bound") {
  const auto with = [](const PrefetchGathersOptions& options) -> Expectation {
    return [=](const ir::Graph& graph) { expect_prefetched(graph, options); };
  };
  const ir::Graph one = after("prefetch_gathers", kForward);
  expect_refused(one, {"c.start", "c.full"}, with({}), "prefetch_gathers: %c.start starts 0 gathers ahead");
  expect_refused(one, {"c.start", "b.out"}, with({}), "prefetch_gathers: %c.start starts 0 gathers ahead");
  expect_refused(one, {"c.start", "a.full"}, with({}), "prefetch_gathers: %c.start starts 2 gathers ahead of 1");
  const ir::Graph two = after("prefetch_gathers forward=after depth=2", kForward);
  expect_refused(two, {"c.start", "b.full"}, with({.depth = 2, .forward = Side::After}), "%c.start starts 0 gathers");
  const ir::Graph bound = after("prefetch_gathers depth=2 max_bytes=16", kForward);
  expect_refused(bound, {"c.start", "a.full"}, with({.depth = 2, .max_bytes = 16}), "24 bytes in flight of at most 16");
  expect_refused(bound, {"c.start", "c.full"}, with({.depth = 2, .max_bytes = 16}), "could start 2");
  const ir::Graph backward = after("prefetch_gathers", R"(
    graph mesh [dp_shard=2] view local
      %w = param name=w : f32[2/dp_shard]
      %x = input name=x : f32[4] own(dp_shard)
    bwd:
      %g = aten.neg %x : f32[4]
      %w.start = all_gather.start %w axis=dp_shard dim=0 : async f32[4]
      %w.full = wait %w.start : f32[4]
      return %g, %w.full
  )");
  expect_refused(backward, {"w.start", "w.full"}, with({}),
                 "prefetch_gathers: %w.start, the first of backward, starts");
}

TEST_CASE("sink_waits: its post-condition finds a wait that is early or late") {
  const auto with = [](Side next) -> Expectation {
    return [=](const ir::Graph& graph) { expect_sunk(graph, {.next = next}); };
  };
  const ir::Graph before = after("sink_waits", kBackward);
  expect_refused(before, {"a.rs", "b"}, with(Side::Before), "sink_waits: the wait of %a.start stands by aten.neg");
  expect_refused(before, {"b.rs", "c"}, with(Side::Before), "sink_waits: the wait of %b.start stands by aten.neg");
  expect_refused(before, {"b.start", "a.rs"}, with(Side::Before), "not by reduce_scatter.start");
  const ir::Graph late = after("sink_waits next=after", kBackward);
  expect_refused(late, {"c", "a.rs"}, with(Side::After), "sink_waits: the wait of %a.start stands by aten.neg");
}

TEST_CASE("variants that do not exist are refused") {
  for (const char* text : {"prefetch_gathers forward=soon", "prefetch_gathers backward=\"\"", "sink_waits next=late"})
    CHECK_THROWS_WITH_AS(parse_passes(text), doctest::Contains("expected one of: before after"), UserError);
}

}  // namespace
}  // namespace sfsdp::passes::schedule_test
