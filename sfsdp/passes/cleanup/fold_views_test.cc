// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/cleanup/fold_views.h"

#include <doctest/doctest.h>

#include "sfsdp/ir/parser.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/random_graph.h"

namespace sfsdp::passes::fold_views_test {
namespace {

using testing::expect_pass;
using testing::expect_unchanged;

TEST_CASE("fold_views: a chain of shapes reads the memory below, and the chain is dead") {
  expect_pass("fold_views, dead_code", R"(
    graph mesh [] view local
      %x = input name=x : f32[4, 6]
    fwd:
      %0 = aten.relu %x : f32[4, 6]
      %1 = aten._unsafe_view %0 size=[24] : f32[24]
      %2 = aten.view %1 size=[2, 12] : f32[2, 12]
      %3 = aten.unsqueeze %2 dim=0 : f32[1, 2, 12]
      %4 = aten.detach %3 : f32[1, 2, 12]
      %y = aten.neg %4 : f32[1, 2, 12]
      return %y
  )",
              R"(
    graph mesh [] view local
      %x = input name=x : f32[4, 6]
    fwd:
      %0 = aten.relu %x : f32[4, 6]
      %4 = aten.view %0 size=[1, 2, 12] : f32[1, 2, 12]
      %y = aten.neg %4 : f32[1, 2, 12]
      return %y
  )");
}

TEST_CASE("fold_views: what changes nothing is its operand, for ops, outputs and carries") {
  expect_pass("fold_views", R"(
    graph mesh [] view local
      %w = param name=w : f32[2, 3]
      %x = input name=x : f32[2, 3]
    fwd:
      %a = aten.alias %x : f32[2, 3]
      %b = aten.view %a size=[2, 3] : f32[2, 3]
      %c = aten.permute %b dims=[0, -1] : f32[2, 3]
      %d = aten.transpose.int %c dim0=1 dim1=-1 : f32[2, 3]
      %y = aten.neg %d : f32[2, 3]
      %w.next = aten.relu %w : f32[2, 3]
      %w.view = aten.detach %w.next : f32[2, 3]
      return %y, %d
      carry %w = %w.view
  )",
              R"(
    graph mesh [] view local
      %w = param name=w : f32[2, 3]
      %x = input name=x : f32[2, 3]
    fwd:
      %y = aten.neg %x : f32[2, 3]
      %w.next = aten.relu %w : f32[2, 3]
      return %y, %x
      carry %w = %w.next
  )");
}

TEST_CASE("fold_views: permutations compose, and t of t is nothing") {
  expect_pass("fold_views, dead_code", R"(
    graph mesh [] view local
      %x = input name=x : f32[2, 3, 4]
      %m = input name=m : f32[3, 3]
    fwd:
      %1 = aten.permute %x dims=[2, 0, 1] : f32[4, 2, 3]{1, 12, 4}
      %2 = aten.transpose.int %1 dim0=0 dim1=1 : f32[2, 4, 3]{12, 1, 4}
      %3 = aten.permute %2 dims=[0, 2, 1] : f32[2, 3, 4]
      %4 = aten.permute %1 dims=[2, 1, 0] : f32[3, 2, 4]{4, 12, 1}
      %5 = aten.t %m : f32[3, 3]{1, 3}
      %6 = aten.t %5 : f32[3, 3]
      %7 = aten.mm %5, %6 : f32[3, 3]
      %8 = aten.neg %3 : f32[2, 3, 4]
      %9 = aten.neg %4 : f32[3, 2, 4]
      return %7, %8, %9
  )",
              R"(
    graph mesh [] view local
      %x = input name=x : f32[2, 3, 4]
      %m = input name=m : f32[3, 3]
    fwd:
      %4 = aten.permute %x dims=[1, 0, 2] : f32[3, 2, 4]{4, 12, 1}
      %5 = aten.t %m : f32[3, 3]{1, 3}
      %7 = aten.mm %5, %m : f32[3, 3]
      %8 = aten.neg %x : f32[2, 3, 4]
      %9 = aten.neg %4 : f32[3, 2, 4]
      return %7, %8, %9
  )");
}

TEST_CASE("fold_views: ranges of a bucket add up their offsets") {
  expect_pass("fold_views, dead_code", R"(
    graph mesh [] view local
      %flat = param name=flat : f32[20]
    fwd:
      %1 = view %flat offset=4 : f32[3, 4]
      %2 = view %1 offset=2 : f32[8]
      %3 = aten.view %2 size=[2, 4] : f32[2, 4]
      %4 = view %flat offset=0 : f32[10]
      %5 = aten.view %4 size=[5, 2] : f32[5, 2]
      %6 = aten.neg %3 : f32[2, 4]
      %7 = aten.neg %5 : f32[5, 2]
      return %6, %7
  )",
              R"(
    graph mesh [] view local
      %flat = param name=flat : f32[20]
    fwd:
      %3 = view %flat offset=6 : f32[2, 4]
      %5 = view %flat offset=0 : f32[5, 2]
      %6 = aten.neg %3 : f32[2, 4]
      %7 = aten.neg %5 : f32[5, 2]
      return %6, %7
  )");
}

TEST_CASE("fold_views: leaves views of two kinds, of strided memory, of another dtype, and what is no view") {
  expect_unchanged("fold_views", R"(
    graph mesh [] view local
      %x = input name=x : f32[4, 4]
    fwd:
      %1 = aten.t %x : f32[4, 4]{1, 4}
      %2 = aten.unsqueeze %1 dim=0 : f32[1, 4, 4]{16, 1, 4}
      %3 = aten.squeeze.dim %2 dim=0 : f32[4, 4]{1, 4}
      %4 = aten.view %x size=[2, 8] : f32[2, 8]
      %5 = aten.t %4 : f32[8, 2]{1, 8}
      %6 = cast %4 : bf16[2, 8]
      %7 = aten.view %6 size=[16] : bf16[16]
      %8 = aten.relu %x : f32[4, 4]
      return %1, %3, %5, %7, %8
  )");
}

TEST_CASE("fold_views: random programs mean the same, and nothing changes twice") {
  int64_t removed = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const ir::Graph before = testing::random_program(seed);
    ir::Graph after = before.clone();
    removed += run_passes(after, parse_passes("fold_views"))[0].metrics.get("views_removed");
    CHECK_FALSE(run_passes(after, parse_passes("fold_views"))[0].changed);
    REQUIRE_MESSAGE(testing::check_same_meaning(before, after, testing::Agreement::Bitwise) == "", "seed ", seed);
  }
  CHECK(removed > 20);
}

TEST_CASE("fold_views: counts what it composed and what it removed") {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(R"(
    graph mesh [] view local
      %x = input name=x : f32[4, 4]
    fwd:
      %1 = aten.t %x : f32[4, 4]{1, 4}
      %2 = aten.t %1 : f32[4, 4]
      %3 = aten.alias %2 : f32[4, 4]
      return %3
  )"));
  const auto reports = run_passes(graph, parse_passes("fold_views"));
  CHECK(reports[0].metrics.get("views_composed") == 1);
  CHECK(reports[0].metrics.get("views_removed") == 2);
}

TEST_CASE("fold_views: a write through a view of all of a tensor is what is written, one of a part is not") {
  expect_pass("fold_views", R"(
    graph mesh [] view local
      %x = input name=x : f32[6, 4]
      %v = input name=v : f32[2, 3, 4]
    fwd:
      %y = aten.relu %x : f32[6, 4]
      %set = aten.as_strided_scatter %y, %v size=[2, 3, 4] storage_offset=0 stride=[12, 4, 1] : f32[6, 4]
      %seen = aten.as_strided %set size=[2, 3, 4] storage_offset=0 stride=[12, 4, 1] : f32[2, 3, 4]
      %z = aten.neg %seen : f32[2, 3, 4]
      return %y, %z, %set
  )",
              R"(
    graph mesh [] view local
      %x = input name=x : f32[6, 4]
      %v = input name=v : f32[2, 3, 4]
    fwd:
      %y = aten.relu %x : f32[6, 4]
      %set = aten.view %v size=[6, 4] : f32[6, 4]
      %z = aten.neg %v : f32[2, 3, 4]
      return %y, %z, %set
  )");
  const char* kPart = R"(
    graph mesh [] view local
      %x = input name=x : f32[6, 4]
      %v = input name=v : f32[3, 4]
    fwd:
      %y = aten.relu %x : f32[6, 4]
      %set = aten.as_strided_scatter %y, %v size=[3, 4] storage_offset=STRIDE : f32[6, 4]
      return %set
  )";
  for (const char* stride : {"12 stride=[4, 1]", "0 stride=[4, 1]", "0 stride=[8, 1]"}) {
    std::string text = kPart;
    text.replace(text.find("STRIDE"), 6, stride);
    ir::Graph graph = ir::parse_or_throw(testing::dedent(text), "test.ir");
    CHECK_FALSE(run_passes(graph, parse_passes("fold_views"))[0].changed);
  }
}

}  // namespace
}  // namespace sfsdp::passes::fold_views_test
