// SPDX-License-Identifier: BSD-3-Clause
// carry_gathers: what is started in the step before, and that a step which is given it computes the same.
#include "sfsdp/passes/overlap/carry_gathers.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "sfsdp/ir/interp/interpreter.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/plan/verify/rendezvous.h"
#include "sfsdp/plan/verify/verify_plan.h"
#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::passes {
namespace {

// Two units as pipeline_reductions leaves them; a's shard is cast.
constexpr const char* kStep = R"(
    graph mesh [dp_shard=2] view local
      %a = param name=a : f32[2/dp_shard]
      %b = param name=b : f32[2/dp_shard]
    fwd:
      %a.cast = cast %a : bf16[2/dp_shard]
      %a.start = all_gather.start %a.cast axis=dp_shard dim=0 : async bf16[4]
      %b.start = all_gather.start %b axis=dp_shard dim=0 : async f32[4]
      %a.full = wait %a.start : bf16[4]
      %y = aten.neg %a.full : bf16[4]
      %b.full = wait %b.start : f32[4]
      %z = aten.neg %b.full : f32[4]
    bwd:
      %b.rs.start = reduce_scatter.start %z axis=dp_shard dim=0 : async f32[2]
      %b.rs = wait %b.rs.start : f32[2]
      %y.f32 = cast %y : f32[4]
      %a.rs.start = reduce_scatter.start %y.f32 axis=dp_shard dim=0 : async f32[2]
      %a.rs = wait %a.rs.start : f32[2]
    clip:
      %b.grad = gradient %b.rs param=b : f32[2]
      %a.grad = gradient %a.rs param=a : f32[2]
      %sq = sum_squares [%a.grad, %b.grad] axis=dp_shard replicated=[false, false] : f64[2]
      %sq.all = all_reduce %sq axis=dp_shard : f64[2]
      %norm = grad_norm %sq.all : f64[]
      %by = clip_coefficient %norm max_norm=1.0 : f32[]
      %bad = non_finite %norm : f32[]
      %b.clipped = scale %b.grad, %by : f32[2]
    opt:
      %b.new = sgd %b, none, %b.clipped, %bad donates=[0] momentum=0.0 weight_decay=0.0 : f32[2/dp_shard]
    clip:
      %a.clipped = scale %a.grad, %by : f32[2]
    opt:
      %a.new = sgd %a, none, %a.clipped, %bad donates=[0] momentum=0.0 weight_decay=0.0 : f32[2/dp_shard]
      return %norm
      carry %a = %a.new
      carry %b = %b.new
  )";

ir::Graph step() { return ir::parse_or_throw(testing::dedent(kStep)); }

ir::Graph carried(int64_t depth) {
  ir::Graph graph = step();
  PassContext ctx;
  CHECK(carry_gathers(graph, {.depth = depth}, ctx));
  CHECK(ctx.metrics.get("carried") == depth);
  ir::verify_or_throw(graph);
  const std::string text = ir::print(graph);
  CHECK_FALSE(carry_gathers(graph, {.depth = depth}, ctx));
  CHECK(ir::print(graph) == text);
  return graph;
}

TEST_CASE("carry_gathers: the plan holds what is in flight in the arena, not in the state") {
  const plan::StepPlan before = plan::make_plan(step());
  for (const int64_t depth : {1, 2}) {
    const plan::StepPlan plan = plan::make_plan(carried(depth));
    CHECK(plan::verify_plan(plan) == plan::verify_plan(before));  // this step sums what is the same everywhere
    CHECK(plan.memory.state_bytes == before.memory.state_bytes);
    const auto program_of = [&](int64_t) -> const ir::Graph& { return plan.graph; };
    CHECK(plan::check_rendezvous(DeviceMesh(plan.graph.mesh), program_of).empty());
  }
}

TEST_CASE("carry_gathers: the first unit is updated as soon as the norm is known, its gather starts behind") {
  CHECK(ir::print(carried(1)) == testing::dedent(R"(
    graph mesh [dp_shard=2] view local
      %a.in_flight = state name=a.in_flight : async bf16[4]
      %a = param name=a : f32[2/dp_shard]
      %b = param name=b : f32[2/dp_shard]
    fwd:
      %b.start = all_gather.start %b axis=dp_shard dim=0 : async f32[4]
      %a.full = wait %a.in_flight : bf16[4]
      %y = aten.neg %a.full : bf16[4]
      %b.full = wait %b.start : f32[4]
      %z = aten.neg %b.full : f32[4]
    bwd:
      %b.rs.start = reduce_scatter.start %z axis=dp_shard dim=0 : async f32[2]
      %b.rs = wait %b.rs.start : f32[2]
      %y.f32 = cast %y : f32[4]
      %a.rs.start = reduce_scatter.start %y.f32 axis=dp_shard dim=0 : async f32[2]
      %a.rs = wait %a.rs.start : f32[2]
    clip:
      %b.grad = gradient %b.rs param=b : f32[2]
      %a.grad = gradient %a.rs param=a : f32[2]
      %sq = sum_squares [%a.grad, %b.grad] axis=dp_shard replicated=[false, false] : f64[2]
      %sq.all = all_reduce %sq axis=dp_shard : f64[2]
      %norm = grad_norm %sq.all : f64[]
      %by = clip_coefficient %norm max_norm=1.0 : f32[]
      %bad = non_finite %norm : f32[]
      %a.clipped = scale %a.grad, %by : f32[2]
    opt:
      %a.new = sgd %a, none, %a.clipped, %bad donates=[0] momentum=0.0 weight_decay=0.0 : f32[2/dp_shard]
      %a.cast.next = cast %a.new : bf16[2/dp_shard]
      %a.start.next = all_gather.start %a.cast.next axis=dp_shard dim=0 : async bf16[4]
    clip:
      %b.clipped = scale %b.grad, %by : f32[2]
    opt:
      %b.new = sgd %b, none, %b.clipped, %bad donates=[0] momentum=0.0 weight_decay=0.0 : f32[2/dp_shard]
      return %norm
      carry %a = %a.new
      carry %b = %b.new
      carry %a.in_flight = %a.start.next
  )"));
}

// What all ranks' parts of dimension 0 are together, in the dtype of the wire.
ir::interp::Array gathered(const std::vector<ir::interp::Inputs>& ranks, const std::string& name, ir::DType dtype) {
  ir::interp::Array whole = ranks[0].at(name);
  whole.shape[0] *= static_cast<int64_t>(ranks.size());
  whole.dtype = dtype;
  whole.data.clear();
  for (const auto& rank : ranks)
    for (const double x : rank.at(name).data) whole.data.push_back(ir::interp::round_to(dtype, x));
  return whole;
}

TEST_CASE("carry_gathers: given the gathered units, a step does what it did, and leaves the next ones gathered") {
  const ir::Graph before = step();
  for (const int64_t depth : {1, 2}) {
    const ir::Graph after = carried(depth);
    for (const uint64_t seed : {1u, 2u, 3u}) {
      auto inputs = ir::interp::seeded_inputs(before, seed);
      const auto add_gathered = [&](std::vector<ir::interp::Inputs>& to, const std::vector<ir::interp::Inputs>& from) {
        for (auto& rank : to) {
          rank["a.in_flight"] = gathered(from, "a", ir::DType::bf16);
          if (depth == 2) rank["b.in_flight"] = gathered(from, "b", ir::DType::f32);
        }
      };
      const auto expected = ir::interp::run(before, inputs, {});
      auto given = inputs;
      add_gathered(given, inputs);
      const auto got = ir::interp::run(after, given, {});
      std::vector<ir::interp::Inputs> next;
      for (const auto& rank : expected.ranks) next.emplace_back(rank.carried.begin(), rank.carried.end());
      auto wanted = next;
      add_gathered(wanted, next);
      for (size_t rank = 0; rank < wanted.size(); ++rank) {
        CHECK(got.ranks[rank].outputs[0].data == expected.ranks[rank].outputs[0].data);
        REQUIRE(got.ranks[rank].carried.size() == wanted[rank].size());
        for (const auto& [name, value] : wanted[rank]) {
          CAPTURE(name);
          CHECK(got.ranks[rank].carried.at(name).data == value.data);
        }
      }
    }
  }
}

TEST_CASE("carry_gathers: with several micro-batches, or depth 0, nothing is carried, and the metrics say so") {
  ir::Graph graph = step();
  PassContext ctx;
  CHECK_FALSE(carry_gathers(graph, {.depth = 1, .micro_batches = 2}, ctx));
  CHECK(ctx.metrics.get("left_for_micro_batches") == 1);
  CHECK(ctx.metrics.get("carried") == 0);
  testing::expect_unchanged("carry_gathers depth=0", kStep);
  testing::expect_unchanged("carry_gathers micro_batches=3", kStep);
}

}  // namespace
}  // namespace sfsdp::passes
