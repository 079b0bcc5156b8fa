// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/checkpoints.h"

#include <doctest/doctest.h>

#include "sfsdp/cost/op_cost.h"
#include "sfsdp/ir/parser.h"

namespace sfsdp::cost::checkpoints_test {
namespace {

// Two layers of two products and a sum; backward reads h, not y.
const char* kStep = R"(
graph mesh [dp_shard=1] view local
  %x = input name=x : f32[4, 8]
  %a = param name=a : f32[16, 8]
  %b = param name=b : f32[8, 16]
fwd:
  %h = linear %x, %a : f32[4, 16] at layers.0.a
  %s = aten.silu %h : f32[4, 16] at layers.0
  %y = linear %s, %b : f32[4, 8] at layers.0.b
  %z = aten.add.Tensor %x, %y : f32[4, 8] at layers.0.b
  %k = aten.neg %z : f32[4, 8] at layers.1
bwd:
  %h.again = linear %x, %a : f32[4, 16] at layers.0.a
  %s.again = aten.silu %h.again : f32[4, 16] at layers.0
  %gb = linear_dw %k, %s.again bwd_of=%y : f32[8, 16] at layers.0.b
  %gs = linear_dx %k, %b bwd_of=%y : f32[4, 16] at layers.0.b
  %gh = aten.silu_backward %gs, %h.again bwd_of=%s : f32[4, 16] at layers.0
  %ga = linear_dw %gh, %x bwd_of=%h : f32[16, 8] at layers.0.a
  return %z, %ga, %gb
)";

TEST_CASE("checkpoints: run again to the end, the last product and its sum are too") {
  const ir::Graph graph = ir::parse_or_throw(kStep);
  const auto unread = run_again_unread(graph);
  REQUIRE(unread.size() == 1);
  const auto& [after, ops] = *unread.begin();
  CHECK(after->result()->name() == "s.again");
  REQUIRE(ops.size() == 2);
  CHECK(ops[0]->result()->name() == "y");
  CHECK(ops[1]->result()->name() == "z");
}

TEST_CASE("checkpoints: what is run again unread takes its kernels' time, after what is read") {
  const ir::Graph graph = ir::parse_or_throw(kStep);
  Machine m;
  m.peak_f32 = m.matmul_efficiency = m.memory_efficiency = 1;
  m.memory_bandwidth = 1;
  m.dispatch = 3;
  const auto kernels = [&](bool whole) {
    return price_kernels(graph, m, Execution::Eager, System::Fsdp2, {.whole_blocks = whole}).kernels;
  };
  const auto early = kernels(false), whole = kernels(true);
  REQUIRE(early.size() == whole.size());
  for (size_t i = 0; i < early.size(); ++i) {
    const bool last = early[i].ops[0]->result()->name() == "s.again";
    // a product of 2 · 4 · 16 · 8 flops, a sum of three tensors of 32
    CHECK(whole[i].seconds - early[i].seconds == doctest::Approx(last ? 1024 + 3 * 4 * 32 : 0));
    CHECK(whole[i].host - early[i].host == doctest::Approx(last ? 2 * 3 : 0));
  }
}

}  // namespace
}  // namespace sfsdp::cost::checkpoints_test
