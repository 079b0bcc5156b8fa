// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/memory/remat_in_kernels.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "sfsdp/base/check.h"
#include "sfsdp/cost/op_cost.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/plan/memory_plan.h"
#include "sfsdp/plan/step_plan.h"
#include "sfsdp/plan/verify/hazards.h"
#include "sfsdp/plan/verify/kernels.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/source_dir.h"

namespace sfsdp::passes::remat_in_kernels_test {
namespace {

using testing::expect_pass, testing::expect_unchanged;

TEST_CASE("remat_in_kernels: silu(gate) is made by the kernel of backward that reads it, and is in no memory") {
  const std::string before = testing::dedent(R"(
    graph mesh [dp_shard=2] view local
      %x = input name=x : f32[8, 4] own(dp_shard)
      %w13 = input name=w13 : f32[32, 4]
      %w2 = input name=w2 : f32[4, 16]
    fwd:
      %gate, %up = joined_linear %x, %w13 kernel=0 widths=[16, 16] : f32[8, 16], f32[8, 16]
      %s = aten.silu %gate kernel=0 : f32[8, 16] at layers.0
      %h = aten.mul.Tensor %s, %up kernel=0 : f32[8, 16]
      %y = linear %h, %w2 kernel=1 : f32[8, 4]
    bwd:
      %dw2 = linear_dw %y, %h kernel=2 : f32[4, 16]
      %dh = linear_dx %y, %w2 kernel=3 : f32[8, 16]
      %dup = aten.mul.Tensor %dh, %s kernel=3 : f32[8, 16]
      %ds = aten.mul.Tensor %dh, %up kernel=3 : f32[8, 16]
      %dgate = aten.mul.Tensor %ds, %gate kernel=3 : f32[8, 16]
      %dx = joined_linear_dx %dgate, %dup, %w13 kernel=4 order=[0, 1] : f32[8, 4]
      return %dw2, %dx
  )");
  const std::string after = testing::dedent(R"(
    graph mesh [dp_shard=2] view local
      %x = input name=x : f32[8, 4] own(dp_shard)
      %w13 = input name=w13 : f32[32, 4]
      %w2 = input name=w2 : f32[4, 16]
    fwd:
      %gate, %up = joined_linear %x, %w13 kernel=0 widths=[16, 16] : f32[8, 16], f32[8, 16]
      %s = aten.silu %gate kernel=0 : f32[8, 16] at layers.0
      %h = aten.mul.Tensor %s, %up kernel=0 : f32[8, 16]
      %y = linear %h, %w2 kernel=1 : f32[8, 4]
    bwd:
      %dw2 = linear_dw %y, %h kernel=2 : f32[4, 16]
      %dh = linear_dx %y, %w2 kernel=3 : f32[8, 16]
      %s.again = aten.silu %gate kernel=3 : f32[8, 16] at layers.0
      %dup = aten.mul.Tensor %dh, %s.again kernel=3 : f32[8, 16]
      %ds = aten.mul.Tensor %dh, %up kernel=3 : f32[8, 16]
      %dgate = aten.mul.Tensor %ds, %gate kernel=3 : f32[8, 16]
      %dx = joined_linear_dx %dgate, %dup, %w13 kernel=4 order=[0, 1] : f32[8, 4]
      return %dw2, %dx
  )");
  expect_pass("remat_in_kernels", before, after);
  const auto holds = [](const std::string& text, const std::string& name) {
    const ir::Graph graph = ir::parse_or_throw(text);
    const plan::MemoryPlan plan = plan::plan_memory(graph);
    return std::ranges::any_of(plan.buffers, [&](const plan::Buffer& b) { return b.value->name() == name; });
  };
  CHECK(holds(before, "s"));
  CHECK_FALSE(holds(after, "s"));
  CHECK_FALSE(holds(after, "s.again"));
}

// %a is read by both kernels of backward, %b by the second one, through a view. %c is kept, as a product reads it.
TEST_CASE("remat_in_kernels: what is made of it too, in each kernel that reads it, and through reshapes") {
  expect_pass("remat_in_kernels", R"(
    graph mesh [dp_shard=2] view local
      %x = input name=x : f32[8, 8] own(dp_shard)
    fwd:
      %p = aten.mm %x, %x kernel=0 : f32[8, 8]
      %a = aten.neg %p kernel=0 : f32[8, 8]
      %b = aten.relu %a kernel=0 : f32[8, 8]
      %c = aten.mul.Tensor %a, %b kernel=0 : f32[8, 8]
      %bv = aten.view %b size=[64] : f32[64]
    bwd:
      %d = aten.mul.Tensor %c, %a kernel=1 : f32[8, 8]
      %e = aten.mul.Tensor %d, %p kernel=1 : f32[8, 8]
      %q = aten.mm %e, %c kernel=2 : f32[8, 8]
      %qv = aten.view %q size=[64] : f32[64]
      %f = aten.mul.Tensor %qv, %bv kernel=2 : f32[64]
      %g = aten.mul.Tensor %q, %a kernel=2 : f32[8, 8]
      %h = aten.mm %p, %e kernel=3 : f32[8, 8]
      return %f, %g, %h
  )",
              R"(
    graph mesh [dp_shard=2] view local
      %x = input name=x : f32[8, 8] own(dp_shard)
    fwd:
      %p = aten.mm %x, %x kernel=0 : f32[8, 8]
      %a = aten.neg %p kernel=0 : f32[8, 8]
      %b = aten.relu %a kernel=0 : f32[8, 8]
      %c = aten.mul.Tensor %a, %b kernel=0 : f32[8, 8]
    bwd:
      %a.again = aten.neg %p kernel=1 : f32[8, 8]
      %d = aten.mul.Tensor %c, %a.again kernel=1 : f32[8, 8]
      %e = aten.mul.Tensor %d, %p kernel=1 : f32[8, 8]
      %q = aten.mm %e, %c kernel=2 : f32[8, 8]
      %qv = aten.view %q size=[64] : f32[64]
      %a.again_1 = aten.neg %p kernel=2 : f32[8, 8]
      %b.again = aten.relu %a.again_1 kernel=2 : f32[8, 8]
      %bv.again = aten.view %b.again size=[64] : f32[64]
      %f = aten.mul.Tensor %qv, %bv.again kernel=2 : f32[64]
      %g = aten.mul.Tensor %q, %a.again_1 kernel=2 : f32[8, 8]
      %h = aten.mm %p, %e kernel=3 : f32[8, 8]
      return %f, %g, %h
  )");
}

// Where nothing else reads it, forward does not make it at all.
TEST_CASE("remat_in_kernels: a kernel that makes what it reads of what it reads leaves nothing of it in forward") {
  expect_pass("remat_in_kernels", R"(
    graph mesh [dp_shard=2] view local
      %x = input name=x : f32[8, 8] own(dp_shard)
    fwd:
      %p = aten.mm %x, %x kernel=0 : f32[8, 8]
      %a = aten.neg %p kernel=0 : f32[8, 8]
      %b = aten.relu %a kernel=0 : f32[8, 8]
    bwd:
      %d = aten.mul.Tensor %b, %a kernel=1 : f32[8, 8]
      %e = aten.mul.Tensor %d, %p kernel=1 : f32[8, 8]
      return %e
  )",
              R"(
    graph mesh [dp_shard=2] view local
      %x = input name=x : f32[8, 8] own(dp_shard)
    fwd:
      %p = aten.mm %x, %x kernel=0 : f32[8, 8]
    bwd:
      %a.again = aten.neg %p kernel=1 : f32[8, 8]
      %b.again = aten.relu %a.again kernel=1 : f32[8, 8]
      %d = aten.mul.Tensor %b.again, %a.again kernel=1 : f32[8, 8]
      %e = aten.mul.Tensor %d, %p kernel=1 : f32[8, 8]
      return %e
  )");
}

constexpr const char* kHead = R"(
    graph mesh [dp_shard=2] view local
      %x = input name=x : f32[8, 8] own(dp_shard)
    fwd:
      %p = aten.mm %x, %x kernel=0 : f32[8, 8]
)";

TEST_CASE("remat_in_kernels: what a product, a sum over rows or the step's caller reads stays") {
  expect_unchanged("remat_in_kernels", concat(kHead, R"(
      %a = aten.neg %p kernel=0 : f32[8, 8]
      %b = aten.neg %p kernel=0 : f32[8, 8]
      %c = aten.neg %p kernel=0 : f32[8, 8]
      %d = aten.neg %p kernel=0 : f32[8, 8]
    bwd:
      %e = aten.mm %a, %p kernel=1 : f32[8, 8]
      %f = aten.sum.dim_IntList %b dim=[0] kernel=2 : f32[8]
      %g = aten.mul.Tensor %c, %p kernel=3 : f32[8, 8]
      %t = aten.t %d : f32[8, 8]{1, 8}
      %h = aten.mul.Tensor %t, %p kernel=4 : f32[8, 8]
      return %c, %e, %f, %g, %h
)"));
}

TEST_CASE("remat_in_kernels: an operand that would have to be kept, or more to be read, is no gain") {
  // %p is read by forward alone.
  expect_unchanged("remat_in_kernels", concat(kHead, R"(
      %a = aten.neg %p kernel=0 : f32[8, 8]
      %y = aten.mm %a, %a kernel=1 : f32[8, 8]
    bwd:
      %g = aten.mul.Tensor %y, %a kernel=2 : f32[8, 8]
      return %g
)"));
  // Whole numbers of four bytes would be read for truths of one.
  expect_unchanged("remat_in_kernels", concat(kHead, R"(
      %a = aten.ne.Scalar %p kernel=0 other=0 : b1[8, 8]
      %y = aten.mul.Tensor %p, %a kernel=0 : f32[8, 8]
    bwd:
      %z = aten.mm %y, %y kernel=1 : f32[8, 8]
      %g = aten.mul.Tensor %z, %a kernel=1 : f32[8, 8]
      %h = aten.mm %p, %g kernel=2 : f32[8, 8]
      return %h
)"));
}

TEST_CASE("remat_in_kernels: what is drawn stays") {
  expect_unchanged("remat_in_kernels", concat(kHead, R"(
      %a = aten.rand kernel=1 size=[8, 8] : f32[8, 8]
    bwd:
      %g = aten.mul.Tensor %p, %a kernel=2 : f32[8, 8]
      return %g
)"));
}

// Products and pointwise ops; backward reads what forward has made, and what it makes itself.
ir::Graph random_step(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&](size_t n) { return static_cast<size_t>(random() % n); };
  constexpr std::array<const char*, 3> kOne = {"aten.neg", "aten.relu", "aten.silu"};
  constexpr std::array<const char*, 4> kTwo = {"aten.mul.Tensor", "aten.add.Tensor", "aten.sub.Tensor", "aten.mm"};
  std::string text = "graph mesh [dp_shard=2] view local\n  %v0 = input name=x : f32[4, 4] own(dp_shard)\n";
  size_t values = 1;
  for (const char* section : {"fwd:\n", "bwd:\n"}) {
    text += section;
    for (int i = 0; i < 12; ++i) {
      const std::string first = concat("%v", pick(values)), second = concat("%v", pick(values));
      text += concat("  %v", values++, " = ");
      text += pick(3) == 0 ? concat(kOne.at(pick(3)), ' ', first) : concat(kTwo.at(pick(4)), ' ', first, ", ", second);
      text += " : f32[4, 4]\n";
    }
  }
  return ir::parse_or_throw(concat(text, "  return %v", values - 1, ", %v", values - 2, ", %v", values - 3, "\n"));
}

TEST_CASE("remat_in_kernels: random steps mean the same, in sound kernels, of no more memory and bytes") {
  int64_t repeated = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    ir::Graph before = random_step(seed);
    run_passes(before, parse_passes("dead_code, fuse"));
    ir::Graph after = before.clone();
    const auto reports = run_passes(after, parse_passes("remat_in_kernels"));
    repeated += reports[0].metrics.get("ops_repeated");
    CHECK(testing::check_same_meaning(before, after, testing::Agreement::Bitwise) == "");
    CHECK(plan::check_kernels(after) == "");
    CHECK(plan::plan_memory(after).live_bytes <= plan::plan_memory(before).live_bytes);
    const auto bytes = [](const ir::Graph& graph) {
      double sum = 0;
      for (const auto& kernel : cost::price_kernels(graph, cost::Machine(), cost::Execution::Fused).kernels)
        sum += kernel.bytes;
      return sum;
    };
    CHECK(bytes(after) <= bytes(before));
    const plan::StepPlan planned = plan::make_plan(std::move(after));
    CHECK(plan::check_hazards(planned).empty());
  }
  CHECK(repeated > 50);
}

TEST_CASE(
    "remat_in_kernels: what forward has written over by then is not read again; what backward writes over later is") {
  const auto repeated = [](const char* section) {
    ir::Graph graph = ir::parse_or_throw(testing::dedent(concat(R"(
    graph mesh [dp_shard=1] view local
      %x = input name=x : f32[4, 4]
      %g = input name=g : f32[4, 4]
      %s = state name=s : f32[4]
    fwd:
      %h = aten.mm %x, %x : f32[4, 4]
      %y = aten.mul.Tensor %h, %s : f32[4, 4]
      %l = aten.silu %y : f32[4, 4]
)",
                                                                section)));
    run_passes(graph, parse_passes("keep_in_place,fuse,remat_in_kernels"));
    CHECK(plan::check_kernels(graph) == "");
    return std::ranges::any_of(graph.ops(), [](const auto& op) { return op->result()->name() == "y.again"; });
  };
  const std::string half = "      %s2 = aten.mul.Scalar %s other=0.5 : f32[4]\n";
  const std::string backward =
      "      %d = aten.mm %l, %g : f32[4, 4]\n"
      "      %e = aten.silu_backward %d, %y : f32[4, 4]\n"
      "      %f = aten.silu_backward %e, %h : f32[4, 4]\n";
  const std::string end = "      return %f\n      carry %s = %s2\n";
  CHECK_FALSE(repeated((half + "    bwd:\n" + backward + end).c_str()));
  CHECK(repeated(("    bwd:\n" + backward + "    opt:\n" + half + end).c_str()));
}

TEST_CASE(
    "remat_in_kernels: what a product's kernel makes of memory alone is for the tiles of one result, and is read by "
    "them") {
  const auto wrong = [](const std::string& ops) {
    return plan::check_kernels(ir::parse_or_throw(testing::dedent(concat(R"(
    graph mesh [dp_shard=2] view local
      %x = input name=x : f32[8, 4] own(dp_shard)
      %y = input name=y : f32[8, 16] own(dp_shard)
      %w = input name=w : f32[24, 4]
    fwd:
      %a, %b = joined_linear %x, %w kernel=0 widths=[16, 8] : f32[8, 16], f32[8, 8]
)",
                                                                         ops))));
  };
  CHECK(wrong(R"(
      %s = aten.neg %y kernel=0 : f32[8, 16]
      %c = aten.mul.Tensor %a, %s kernel=0 : f32[8, 16]
      return %b, %c
)") == "");
  CHECK(wrong(R"(
      %s = aten.neg %y kernel=0 : f32[8, 16]
      %c = aten.mul.Tensor %a, %a kernel=0 : f32[8, 16]
      return %b, %c, %s
)")
            .find("reads nothing of the product of its kernel") != std::string::npos);
  CHECK(wrong(R"(
      %s = aten.neg %y kernel=0 : f32[8, 16]
      %c = aten.mul.Tensor %a, %s kernel=0 : f32[8, 16]
      %t = narrow %s dim=1 length=8 start=0 : f32[8, 8]{16, 1}
      %d = aten.mul.Tensor %b, %t kernel=0 : f32[8, 8]
      return %c, %d
)")
            .find("which other blocks make") != std::string::npos);
}

TEST_CASE("remat_in_kernels: a block of Llama under HSDP keeps no silu") {
  std::ifstream file(testing::source_dir() + "/sfsdp/plan/testdata/llama_step.txt");
  REQUIRE(file);
  ir::Graph graph = ir::parse_or_throw(std::string{std::istreambuf_iterator<char>(file), {}});
  const auto keeps = [&](const char* opcode) {
    const plan::MemoryPlan plan = plan::plan_memory(graph);
    return std::ranges::count_if(plan.buffers, [&](const plan::Buffer& b) { return b.value->producer()->is(opcode); });
  };
  CHECK(keeps("aten.silu") > 0);
  run_passes(graph, parse_passes("remat_in_kernels"));
  CHECK(keeps("aten.silu") == 0);
  CHECK(plan::check_kernels(graph) == "");
}

}  // namespace
}  // namespace sfsdp::passes::remat_in_kernels_test
