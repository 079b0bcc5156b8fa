// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/cleanup/dead_code.h"

#include <doctest/doctest.h>

#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/random_graph.h"

namespace sfsdp::passes::dead_code_test {
namespace {

using testing::expect_pass;
using testing::expect_unchanged;

TEST_CASE("dead_code: a chain falls as a whole, a collective, its start and its wait too") {
  expect_pass("dead_code", R"(
    graph mesh [a=2] view local
      %w = param name=w : f32[2, 2]
      %x = input name=x : f32[2, 2]
    fwd:
      %g = all_gather %w axis=a dim=0 : f32[4, 2]
      %t = aten.t %g : f32[2, 4]
      %s = all_gather.start %w axis=a dim=0 : async f32[4, 2]
      %f = wait %s : f32[4, 2]
      %y = aten.relu %x : f32[2, 2]
      return %y
  )",
              R"(
    graph mesh [a=2] view local
      %w = param name=w : f32[2, 2]
      %x = input name=x : f32[2, 2]
    fwd:
      %y = aten.relu %x : f32[2, 2]
      return %y
  )");
}

TEST_CASE("dead_code: the note on the forward op goes with it") {
  expect_pass("dead_code", R"(
    graph mesh [] view local
      %x = input name=x : f32[2]
    fwd:
      %y = aten.relu %x : f32[2]
    bwd:
      %g = aten.neg %x bwd_of=%y : f32[2]
      return %g
  )",
              R"(
    graph mesh [] view local
      %x = input name=x : f32[2]
    bwd:
      %g = aten.neg %x : f32[2]
      return %g
  )");
}

TEST_CASE("dead_code: leaves what a carry alone reads") {
  expect_unchanged("dead_code", R"(
    graph mesh [] view local
      %w = param name=w : f32[2]
    opt:
      %next = aten.neg %w : f32[2]
      carry %w = %next
  )");
}

TEST_CASE("dead_code: leaves an op one of whose results is read") {
  expect_unchanged("dead_code", R"(
    graph mesh [] view local
      %w = param name=w : f32[2]
      %m = state name=m : f32[2]
      %ok = input name=ok : f32[]
    opt:
      %a, %b = sgd %w, %m, %w, %ok momentum=0.5 weight_decay=0.0 : f32[2], f32[2]
      return %b
  )");
}

TEST_CASE("dead_code: leaves what is not pure") {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(R"(
    graph mesh [] view local
      %x = input name=x : f32[2]
    fwd:
      %y, %mask = aten.native_dropout %x p=0.5 : f32[2], b1[2]
      %z = aten.relu_ %x : f32[2]
  )"));
  CHECK_FALSE(run_passes(graph, parse_passes("dead_code"))[0].changed);
}

TEST_CASE("dead_code: counts what it removed") {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(R"(
    graph mesh [a=2] view local
      %x = input name=x : f32[2]
    fwd:
      %g = all_gather %x axis=a dim=0 : f32[4]
      %n = aten.neg %g : f32[4]
  )"));
  const auto reports = run_passes(graph, parse_passes("dead_code"));
  CHECK(to_string(reports[0]) ==
        "dead_code: changed; collective_bytes_after 0, collective_bytes_before 16, collectives_after 0, "
        "collectives_before 1, collectives_removed 1, ops_after 1, "
        "ops_before 3, ops_removed 2");
}

TEST_CASE("dead_code: random programs mean the same, and nothing changes twice") {
  int64_t removed = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const ir::Graph before = testing::random_program(seed);
    ir::Graph after = before.clone();
    removed += run_passes(after, parse_passes("dead_code"))[0].metrics.get("ops_removed");
    CHECK_FALSE(run_passes(after, parse_passes("dead_code"))[0].changed);
    REQUIRE_MESSAGE(testing::check_same_meaning(before, after, testing::Agreement::Bitwise) == "", "seed ", seed);
  }
  CHECK(removed > 500);  // else the programs hold too little to remove
}

}  // namespace
}  // namespace sfsdp::passes::dead_code_test
