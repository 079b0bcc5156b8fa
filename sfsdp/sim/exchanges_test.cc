// SPDX-License-Identifier: BSD-3-Clause
// Tokens that travel to their experts and back, in simulated time: what covers them, and what rounds after the first cost.
#include <doctest/doctest.h>

#include <array>
#include <string>
#include <utility>

#include "sfsdp/base/error.h"
#include "sfsdp/cost/machine.h"
#include "sfsdp/ir/loops.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/plan/step_plan.h"
#include "sfsdp/sim/report/bucket_table.h"
#include "sfsdp/sim/report/memory_timeline.h"
#include "sfsdp/sim/simulate.h"
#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::sim::exchanges_test {
namespace {

// A mixture with a shared expert of two products, which no token waits for.
const std::string kMixture = testing::dedent(R"(
  graph mesh [ep=8] view local
    %w = param box=ep name=w : bf16[8/ep, 4096, 4096] at layers.0.experts.w
    %s = param name=s : bf16[4096, 4096] at layers.0.shared
    %x = input name=x : bf16[65536, 4096]
    %order = input name=order : i64[262144]
    %place = input name=place : i64[262144]
  fwd:
    %ends = full value=262144 : i32[64]
    %t = own_part %x axis=ep dim=0 : bf16[8192/ep, 4096]
    %own = own_ends %ends axis=ep room=32768 : i32[8/ep] at layers.0.experts
    %rows.start = all_to_all_v.start %t, %order, %ends axis=ep room=32768 rows=65536 to=rows : async bf16[32768, 4096] rows0(ep) at layers.0
    %rows = wait %rows.start : bf16[32768, 4096] rows0(ep) at layers.0
    %y = aten._grouped_mm %rows, %w, %own, none : bf16[32768, 4096] rows0(ep) at layers.0.experts
    %back.start = all_to_all_v.start %y, %place, %ends axis=ep room=32768 rows=262144 to=parts : async bf16[32768/ep, 4096] at layers.0
    %back = wait %back.start : bf16[32768/ep, 4096] at layers.0
    %pairs = view %back : bf16[8192/ep, 4, 4096] at layers.0
    %sum = aten.sum.dim_IntList %pairs dim=[1] : bf16[8192/ep, 4096] at layers.0
    %up = linear %t, %s : bf16[8192/ep, 4096] at layers.0.shared
    %down = linear %up, %s : bf16[8192/ep, 4096] at layers.0.shared
    %out = aten.add.Tensor %sum, %down : bf16[8192/ep, 4096] at layers.0
    return %out
)");

ir::Graph after(const std::string& passes) {
  ir::Graph graph = ir::parse_or_throw(kMixture);
  passes::run_passes(graph, passes::parse_passes(passes));
  return graph;
}

TEST_CASE("simulation: an exchange is exposed for as much less as shared experts compute meanwhile") {
  const ir::Graph as_written = after("dead_code"), covered = after("cover_exchanges");
  const cost::Machine machine = cost::load_machine("dgx_h100");
  const Simulation before = simulate(as_written, machine), now = simulate(covered, machine);
  double shared = 0;
  for (const Event& event : now.events)
    if (event.kind == Event::Kernel && event.op->is("linear")) shared += event.end - event.begin;
  REQUIRE(shared > 0);
  REQUIRE(before.exposed_seconds.at("all_to_all_v") > shared);
  CHECK(before.exposed_seconds.at("all_to_all_v") - now.exposed_seconds.at("all_to_all_v") ==
        doctest::Approx(shared).epsilon(0.02));
  CHECK(now.step_seconds < before.step_seconds);
}

TEST_CASE("simulation: rounds after the first make no trip, where choices are even") {
  const ir::Graph one = after("cover_exchanges"), more = after("cover_exchanges, further_rounds");
  const cost::Machine machine = cost::load_machine("dgx_h100");
  const Simulation before = simulate(one, machine), now = simulate(more, machine);
  CHECK(now.communication_seconds.at("all_to_all_v") ==
        doctest::Approx(before.communication_seconds.at("all_to_all_v")));
  CHECK(now.step_seconds == doctest::Approx(before.step_seconds).epsilon(0.01));
}

TEST_CASE(
    "simulation: what a page shows of a graph with rounds are collectives that run, and memory at kernels that run") {
  const plan::StepPlan plan = plan::make_plan(after("cover_exchanges, further_rounds"));
  REQUIRE_FALSE(ir::loops_of(plan.graph).empty());
  const Simulation simulation = simulate(plan.graph, cost::load_machine("dgx_h100"));
  const auto rows = bucket_table(plan.graph, simulation, {});
  CHECK(rows.size() == 2);
  for (const BucketRow& row : rows) CHECK(row.runs == 1);
  const auto samples = memory_over_time(plan.graph, plan.memory, simulation);
  REQUIRE(samples.size() > 4);
  for (size_t i = 1; i < samples.size(); ++i) CHECK(samples[i].at >= samples[i - 1].at);
}

TEST_CASE("simulation: room for less than an even share would need rounds that nobody simulates, which is told") {
  std::string text = kMixture;
  for (const auto& [from, to] :
       {std::pair("room=32768", "room=16384"), std::pair("[32768, 4096] rows0", "[16384, 4096] rows0")})
    for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + 1))
      text.replace(at, std::string(from).size(), to);
  ir::Graph graph = ir::parse_or_throw(text);
  passes::run_passes(graph, passes::parse_passes("further_rounds"));
  CHECK_THROWS_WITH_AS(simulate(graph, cost::load_machine("dgx_h100")),
                       doctest::Contains("8 ranks with room for 16384 rows each need further rounds for 262144"),
                       UserError);
}

}  // namespace
}  // namespace sfsdp::sim::exchanges_test
