// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/memory/remat_list.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/passes/registry.h"
#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::passes::remat_list_test {
namespace {

// wq [4, 4] and wo [4, 4] have one shape, w1 [8, 4] another. Backward reads all of it; %d is given to the output, so it stays.
constexpr const char* kBlock = R"(
    graph mesh [] view local
      %q = param name=layers.0.attention.wq.weight : f32[4, 4] at layers.0.attention.wq
      %o = param name=layers.0.attention.wo.weight : f32[4, 4] at layers.0.attention.wo
      %f = param name=layers.0.feed_forward.w1.weight : f32[8, 4] at layers.0.feed_forward.w1
      %last = param name=output.weight : f32[2, 8] at output
      %x = input name=x : f32[3, 4]
    fwd:
      %a = linear %x, %q : f32[3, 4] at layers.0.attention.wq
      %s = aten.relu %a : f32[3, 4] at layers.0.attention
      %b = linear %s, %o : f32[3, 4] at layers.0.attention.wo
      %c = linear %b, %f : f32[3, 8] at layers.0.feed_forward.w1
      %d = aten.relu %c : f32[3, 8] at layers.0.feed_forward
      %y = linear %d, %last : f32[3, 2] at output
    bwd:
      %1 = aten.mul.Tensor %a, %s : f32[3, 4]
      %2 = aten.mul.Tensor %1, %b : f32[3, 4]
      %3 = aten.mul.Tensor %c, %d : f32[3, 8]
      return %y, %2, %3
  )";

// Names of the values that backward makes itself. The pass runs on simulated ranks before and after, bit for bit.
std::string again(const std::string& options) {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(kBlock), "test.ir");
  run_passes(graph, parse_passes("remat mode=op " + options));
  std::vector<std::string> names;
  for (const auto& op : graph.ops())
    if (op->result() && op->result()->name().ends_with(".again")) names.push_back(op->result()->name().substr(0, 1));
  return join(names, " ");
}

}  // namespace

TEST_CASE("remat_list: products are kept, each k-th is not, and those of named modules and of their shapes never") {
  CHECK(again("mm_again=0") == "s");
  CHECK(again("mm_again=2") == "s b");
  CHECK(again("mm_again_of=feed_forward.w1") == "s c");
  CHECK(again("mm_again_of=attention.wo") == "a s b");  // wq has that shape
  CHECK(again("mm_again=2 mm_again_of=feed_forward.w1") == "s b c");
  CHECK(again("mm_again=1 mm_again_of=moe.router.gate") == "a s b c");
}

TEST_CASE("remat_list: what a list names is kept, by op, by module and by a module above") {
  CHECK(again("save=linear") == "s");
  CHECK(again("save=aten.relu") == "a b c");
  CHECK(again("save=\"attention.wq, feed_forward\"") == "s b");
  CHECK(again("save=attention") == "c");
  CHECK(again("save=linear mm_again_of=w1") == "s c");
  CHECK_THROWS_WITH_AS(
      again("save=\"linear, attention.w\""),
      doctest::Contains("RematOptions::save: attention.w is no op and no module of a block\n  expected "
                        "some of aten.relu, attention, attention.wo, attention.wq, feed_forward"),
      UserError);
  CHECK_THROWS_AS(again("save=output"), UserError);
}

TEST_CASE("remat_list: a listed block computes the same numbers") {
  testing::expect_pass("remat mode=op save=attention", kBlock, R"(
    graph mesh [] view local
      %q = param name=layers.0.attention.wq.weight : f32[4, 4] at layers.0.attention.wq
      %o = param name=layers.0.attention.wo.weight : f32[4, 4] at layers.0.attention.wo
      %f = param name=layers.0.feed_forward.w1.weight : f32[8, 4] at layers.0.feed_forward.w1
      %last = param name=output.weight : f32[2, 8] at output
      %x = input name=x : f32[3, 4]
    fwd:
      %a = linear %x, %q : f32[3, 4] at layers.0.attention.wq
      %s = aten.relu %a : f32[3, 4] at layers.0.attention
      %b = linear %s, %o : f32[3, 4] at layers.0.attention.wo
      %c = linear %b, %f : f32[3, 8] at layers.0.feed_forward.w1
      %d = aten.relu %c : f32[3, 8] at layers.0.feed_forward
      %y = linear %d, %last : f32[3, 2] at output
    bwd:
      %1 = aten.mul.Tensor %a, %s : f32[3, 4]
      %2 = aten.mul.Tensor %1, %b : f32[3, 4]
      %c.again = linear %b, %f : f32[3, 8] at layers.0.feed_forward.w1
      %3 = aten.mul.Tensor %c.again, %d : f32[3, 8]
      return %y, %2, %3
  )");
}

}  // namespace sfsdp::passes::remat_list_test
