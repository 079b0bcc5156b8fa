// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/sim/simulate.h"

#include <doctest/doctest.h>

#include "sfsdp/base/error.h"
#include "sfsdp/cost/collective_cost.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/plan/step_plan.h"
#include "sfsdp/sim/report/trace.h"

namespace sfsdp::sim::simulate_test {
namespace {

// Round numbers: 1 flop/s of products, 1 byte/s of memory and links, no latency.
cost::Machine unit_machine() {
  cost::Machine m;
  m.peak_bf16 = m.peak_f32 = 1;
  m.matmul_efficiency = m.attention_efficiency = m.memory_efficiency = 1;
  m.memory_bandwidth = 1e9;  // products are bound by flops
  m.devices_per_node = 8;
  m.node = {1, 0, 0};
  m.network = {1, 0, 0};
  return m;
}

// Two units; a product of 2·4·4·4 = 128 flops each; each gathers 64 bytes, half of which pass one link: 32 s.
std::string forward(const std::string& order) {
  std::string text = R"(
graph mesh [dp_shard=2] view local
  %a = param name=a : f32[2/dp_shard, 4]
  %b = param name=b : f32[2/dp_shard, 4]
  %x = input name=x : f32[4, 4] own(dp_shard)
fwd:
)";
  for (const char c : order) {
    if (c == 'A') text += "  %as = all_gather.start %a axis=dp_shard dim=0 : async f32[4, 4]\n";
    if (c == 'B') text += "  %bs = all_gather.start %b axis=dp_shard dim=0 : async f32[4, 4]\n";
    if (c == 'w') text += "  %aw = wait %as : f32[4, 4]\n";
    if (c == 'v') text += "  %bw = wait %bs : f32[4, 4]\n";
    if (c == '1') text += "  %y = aten.mm %x, %aw : f32[4, 4]\n";
    if (c == '2') text += "  %z = aten.mm %y, %bw : f32[4, 4]\n";
  }
  return text + "  return %z\n";
}

TEST_CASE("simulate: what is exposed is what nothing covers") {
  const auto run = [](const std::string& order) {
    const ir::Graph graph = ir::parse_or_throw(forward(order));
    return simulate(graph, unit_machine());
  };
  const Simulation in_order = run("Aw1Bv2");
  CHECK(in_order.step_seconds == doctest::Approx(2 * 32 + 2 * 128));
  CHECK(in_order.exposed() == doctest::Approx(64));
  CHECK(in_order.compute_seconds == doctest::Approx(256));
  CHECK(in_order.flops == 256);
  const Simulation ahead = run("ABw1v2");  // the second gather runs after the first, under the first product
  CHECK(ahead.step_seconds == doctest::Approx(32 + 2 * 128));
  CHECK(ahead.exposed() == doctest::Approx(32));
  CHECK(ahead.communication_seconds.at("all_gather") == doctest::Approx(64));
  CHECK(ahead.communicated_bytes.at("all_gather") == 128);
}

ir::Graph repeated(const ir::Graph& graph, int64_t micro_batches) {
  ir::Graph copy = graph.clone();
  copy.micro_batches = micro_batches;
  return copy;
}

TEST_CASE("simulate: a step of too many micro-batches is refused at once") {
  CHECK_THROWS_WITH_AS(
      simulate(repeated(ir::parse_or_throw(forward("ABw1v2")), 65537), unit_machine()),
      doctest::Contains("the step has 65,537 micro-batches\n  expected at most 65,536 in the simulator"), UserError);
}

// The plan's file says what waits for what.
TEST_CASE("simulate: an edge of a plan's text that is moved or taken away moves what it joins") {
  const auto seconds = [](const std::string& order, const std::string& from, const std::string& to) {
    std::string text = plan::print(plan::make_plan(ir::parse_or_throw(forward(order))));
    REQUIRE(text.find(from) != std::string::npos);
    const plan::StepPlan plan = plan::parse_plan(text.replace(text.find(from), from.size(), to));
    return simulate(plan.graph, unit_machine(), {.edges = &plan.edges}).step_seconds;
  };
  const std::string second = "  dp_shard/0.1 -> compute.1\n", first = "  compute.0 -> dp_shard/0.1\n";
  CHECK(seconds("ABw1v2", second, second) == doctest::Approx(32 + 2 * 128));
  // The first product waits for the second gather too.
  CHECK(seconds("ABw1v2", second, "  dp_shard/0.1 -> compute.0\n" + second) == doctest::Approx(2 * 32 + 2 * 128));
  // The second product waits for no gather: it would begin at once after the first.
  CHECK(seconds("ABw1v2", second, "") == doctest::Approx(32 + 2 * 128));
  CHECK(seconds("Aw1Bv2", second, second) == doctest::Approx(2 * 32 + 2 * 128));
  CHECK(seconds("Aw1Bv2", second, "") == doctest::Approx(32 + 2 * 128));
  // The second gather does not wait for the first product.
  CHECK(seconds("Aw1Bv2", first, "") == doctest::Approx(32 + 2 * 128));
}

TEST_CASE("simulate: micro-batches repeat forward and backward only; jitter waits for the slowest") {
  const ir::Graph graph = ir::parse_or_throw(forward("ABw1v2"));
  CHECK(simulate(repeated(graph, 3), unit_machine()).step_seconds ==
        doctest::Approx(3 * simulate(graph, unit_machine()).step_seconds));
  const double alike = simulate(graph, unit_machine()).step_seconds;
  const double jittered = simulate(graph, unit_machine(), {.jitter = 0.5, .seed = 3}).step_seconds;
  CHECK(jittered > alike);
  CHECK(jittered < alike + 0.5 * 256);
  CHECK(simulate(graph, unit_machine(), {.jitter = 1e-12}).step_seconds == doctest::Approx(alike));
}

TEST_CASE(
    "simulate: gathers before the first micro-batch run once, under its forward; or after the update, or rank by "
    "rank") {
  std::string text = forward("ABw1v2");
  const size_t fwd = text.find("fwd:\n"), waits = text.find("  %aw");
  const std::string starts = text.substr(fwd + 5, waits - fwd - 5);
  text = text.substr(0, fwd) + starts + "fwd:\n" + text.substr(waits);
  const ir::Graph graph = repeated(ir::parse_or_throw(text), 3);
  cost::Machine machine = unit_machine();
  const auto seconds = [&](const SimulateOptions& options) { return simulate(graph, machine, options).step_seconds; };
  // 32 s of the first gather are exposed, once; the second runs under the first product.
  for (const Timelines timelines : {Timelines::Collapsed, Timelines::PerRank}) {
    CHECK(seconds({.timelines = timelines}) == doctest::Approx(32 + 3 * 256));
    CHECK(seconds({.timelines = timelines, .step_gathers = StepGathers::Update}) == doctest::Approx(64 + 3 * 256));
  }
  CHECK(simulate(graph, machine).communicated_bytes.at("all_gather") == 128);
  CHECK(seconds({.jitter = 0.5, .seed = 3}) > 32 + 3 * 256);
  // A broadcast of a parameter of 64 bytes for each gather: all of it passes every link. A latency of 0.8 for each (LL).
  machine.node.base_latency = 1000;
  CHECK(seconds({.step_gathers = StepGathers::Update}) - 3 * 256 == doctest::Approx(2 * (800 + 32 / 0.5)));
  CHECK(seconds({.step_gathers = StepGathers::BroadcastUpdate}) - 3 * 256 == doctest::Approx(2 * (800 + 64 / 0.5)));
  // The second one's rest is under the first product.
  CHECK(seconds({.step_gathers = StepGathers::BroadcastForward}) - 3 * 256 ==
        doctest::Approx(2 * (800 + 64 / 0.5) - 128));
}

TEST_CASE("simulate: reductions that block hold backward where they start, gathers do not") {
  const ir::Graph graph = ir::parse_or_throw(R"(
graph mesh [dp_shard=2] view local
  %a = param name=a : f32[2/dp_shard, 4]
  %x = input name=x : f32[4, 4] own(dp_shard)
fwd:
  %as = all_gather.start %a axis=dp_shard dim=0 : async f32[4, 4]
  %y = aten.mm %x, %x : f32[4, 4]
  %aw = wait %as : f32[4, 4]
bwd:
  %rs = reduce_scatter.start %y axis=dp_shard dim=0 : async f32[2, 4]
  %z = aten.mm %aw, %aw : f32[4, 4]
  %r = wait %rs : f32[2, 4]
  return %r, %z
)");
  // Two products of 2 · 4 · 4 · 4 flops; of either collective half of 64 bytes passes a link.
  const auto step = [&](Reductions reductions) {
    return simulate(graph, unit_machine(), {.reductions = reductions}).step_seconds;
  };
  CHECK(step(Reductions::Overlap) == doctest::Approx(2 * 128));
  CHECK(step(Reductions::Block) == doctest::Approx(2 * 128 + 32));
}

TEST_CASE("simulate: broadcasts stand for gathers that run once per step, and all-reduces for their reduce-scatters") {
  const auto kinds = [](const std::string& section) {
    const ir::Graph graph = ir::parse_or_throw(R"(
graph mesh [dp_shard=2] view local
  %a = param name=a : f32[2/dp_shard, 4]
  %x = input name=x : f32[4, 4] own(dp_shard)
)" + section + R"(  %as = all_gather.start %a axis=dp_shard dim=0 : async f32[4, 4]
fwd:
  %aw = wait %as : f32[4, 4]
  %y = aten.mm %x, %aw : f32[4, 4]
bwd:
  %rs = reduce_scatter.start %y axis=dp_shard dim=0 : async f32[2, 4]
  %r = wait %rs : f32[2, 4]
  return %r
)");
    std::string found;
    for (const auto& [kind, bytes] :
         simulate(graph, unit_machine(), {.step_gathers = StepGathers::BroadcastUpdate}).communicated_bytes)
      found += kind + " ";
    return found;
  };
  CHECK(kinds("") == "all_reduce broadcast ");
  CHECK(kinds("fwd:\n") == "all_gather reduce_scatter ");  // FSDP: nothing runs once
}

// ZeroRedundancyOptimizer sends a parameter at a time, however many ranks and units there are.
TEST_CASE("simulate: a broadcast for each parameter of a unit, as large as the parameter") {
  const ir::Graph graph = ir::parse_or_throw(R"(
graph mesh [dp_shard=4] view local
  %a.flat = param members=[a.w, a.v, a.b] name=a.flat numels=[96, 24, 8] offsets=[0, 96, 120] size=128 unit=a : f32[32/dp_shard]
  %x = input name=x : f32[4, 4] own(dp_shard)
  %a.low = cast %a.flat : bf16[32/dp_shard]
  %as = all_gather.start %a.low axis=dp_shard dim=0 : async bf16[128]
fwd:
  %y = aten.mm %x, %x : f32[4, 4]
  %aw = wait %as : bf16[128]
  return %y, %aw
)");
  cost::Machine machine = unit_machine();
  machine.node.base_latency = 1000;
  const auto exposed = [&](StepGathers gathers) {
    return simulate(graph, machine, {.step_gathers = gathers}).exposed_seconds.at("broadcast");
  };
  // 192, 48 and 16 bytes of bf16, each after a latency of 0.8 (LL, which has half of the bandwidth).
  CHECK(exposed(StepGathers::BroadcastUpdate) == doctest::Approx(3 * 800 + 256 / 0.5));
  CHECK(exposed(StepGathers::BroadcastForward) == doctest::Approx(3 * 800 + 256 / 0.5 - 128));
}

TEST_CASE("simulate: the last micro-batch alone runs what is marked once, and the tail waits for it") {
  const ir::Graph graph = ir::parse_or_throw(R"(
    graph mesh [dp_replicate=2, dp_shard=4] view local
      %x = input name=x : f32[4, 4]
    bwd:
      %y = aten.mm %x, %x : f32[4, 4]
      %r = reduce_scatter.start %y axis=dp_shard dim=0 : async f32[1, 4]
      %rw = wait %r : f32[1, 4]
      %s = accumulate %rw : f32[1, 4]
      %a = all_reduce.start %s axis=dp_replicate once=true : async f32[1, 4]
      %z = aten.mm %x, %y : f32[4, 4]
    opt:
      %aw = wait %a : f32[1, 4]
      return %aw, %z
  )");
  const auto count = [](const Simulation& s, const std::string& kind) {
    return std::ranges::count_if(
        s.events, [&](const Event& e) { return e.kind == Event::Collective && ir::collective_kind(*e.op) == kind; });
  };
  for (const int64_t n : {1, 2, 3})
    for (const Timelines timelines : {Timelines::Collapsed, Timelines::PerRank}) {
      const ir::Graph step = repeated(graph, n);
      const Simulation s = simulate(step, unit_machine(), {.timelines = timelines});
      CHECK(count(s, "reduce_scatter") == n);
      CHECK(count(s, "all_reduce") == 1);
      CHECK(s.flops == 256 * n);
    }
  // It runs under what stands after it in the body.
  const double body = simulate(repeated(graph, 3), unit_machine()).step_seconds -
                      simulate(repeated(graph, 2), unit_machine()).step_seconds;
  CHECK(body < simulate(graph, unit_machine()).step_seconds + 1e-9);
  CHECK(simulate(graph, unit_machine()).exposed_seconds.at("all_reduce") == 0);
}

TEST_CASE("simulate: a fused chain reads and writes what crosses its border") {
  const ir::Graph graph = ir::parse_or_throw(R"(
graph mesh [dp_shard=1] view local
  %x = input name=x : f32[1000]
fwd:
  %a = aten.neg %x kernel=0 : f32[1000]
  %b = aten.mul.Tensor %a, %x kernel=0 : f32[1000]
  %c = aten.neg %b kernel=1 : f32[1000]
  return %c
)");
  cost::Machine m = unit_machine();
  m.memory_bandwidth = 1;
  CHECK(simulate(graph, m).step_seconds == doctest::Approx(8000 + 8000));
}

TEST_CASE("simulate: kernels are slower while a collective runs, and no faster than their host issues them") {
  const ir::Graph graph = ir::parse_or_throw(forward("ABw1v2"));
  cost::Machine m = unit_machine();
  m.node.overlap_slowdown = 0.25;
  // 32 s of the second gather run beside the first product, which does the work of 32 / 1.25 s meanwhile.
  CHECK(simulate(graph, m).step_seconds == doctest::Approx(32 + 2 * 128 + 32 * (1 - 1 / 1.25)));
  m.node.overlap_slowdown = 0;
  m.dispatch = 200;  // s an op; the plan is issued as a whole
  CHECK(simulate(graph, m).step_seconds == doctest::Approx(32 + 2 * 128));
  CHECK(simulate(graph, m, {.execution = cost::Execution::Compile}).step_seconds > 4 * 200);
}

TEST_CASE("simulate: FSDP2 copies gathered units out of their buffer") {
  const ir::Graph graph = ir::parse_or_throw(forward("ABw1v2"));
  cost::Machine m = unit_machine();
  m.memory_bandwidth = 2;
  const double views = simulate(graph, m).step_seconds;
  // Two units of 64 bytes, read and written at 500 · 4 of 3,350 GB/s, once the host's hooks have run.
  CHECK(simulate(graph, m, {.execution = cost::Execution::Eager}).step_seconds ==
        doctest::Approx(views + 2 * 128 / (2 * 2000. / 3350)).epsilon(1e-4));
  CHECK(simulate(graph, m, {.execution = cost::Execution::Eager, .system = cost::System::Fsdp1}).step_seconds ==
        doctest::Approx(views).epsilon(1e-4));
}

TEST_CASE("simulate: the reference executor copies nothing out, and blocks where a collective starts") {
  cost::Machine m = unit_machine();
  m.memory_bandwidth = 2;
  const auto reference = [&](const std::string& text, int64_t micro_batches) {
    return simulate(repeated(ir::parse_or_throw(text), micro_batches), m, {.execution = cost::Execution::Reference});
  };
  // Both gathers are over before the first product begins: 32 s each, though the plan runs the second beside it.
  const Simulation blocked = reference(forward("ABw1v2"), 1);
  CHECK(blocked.exposed() == doctest::Approx(64));
  CHECK(blocked.step_seconds == doctest::Approx(64 + 2 * 128));
  const double beside = simulate(ir::parse_or_throw(forward("ABw1v2")), m).step_seconds;
  CHECK(blocked.step_seconds > beside);
  // So does the plan on a machine whose collectives take the time of what computes.
  cost::Machine inline_machine = m;
  inline_machine.inline_collectives = true;
  const Simulation planned = simulate(ir::parse_or_throw(forward("ABw1v2")), inline_machine);
  CHECK(planned.exposed() == doctest::Approx(64));
  CHECK(planned.step_seconds > beside);

  const std::string text = R"(
graph mesh [dp_shard=1] view local
  %x = input name=x : f32[1000]
bwd:
  %a = aten.neg %x : f32[1000]
  %v = aten.view %a size=[10,100] : f32[10, 100]
  %b = aten.neg %v : f32[10, 100]
  %c = accumulate %b : f32[10, 100]
  return %c
)";
  // Two ops that read and write 4,000 bytes each, and a sum that reads and writes another 4,000; the first micro-batch has
  // none to read.
  CHECK(reference(text, 2).step_seconds == doctest::Approx(2 * (3 * 4000 + 2000) - 2000));
  CHECK(reference(text, 3).step_seconds == doctest::Approx(3 * (3 * 4000 + 2000) - 2000));
  m.dispatch = 7;  // a view takes the executor's time and nothing else
  CHECK(reference(text, 1).step_seconds == doctest::Approx(3 * 4000 + 2000 + 2 * 7));
}

TEST_CASE("simulate: an event is named by what it stands for") {
  const ir::Graph graph = ir::parse_or_throw(R"(
graph mesh [dp_shard=2] view local
  %x = input name=x : f32[4] own(dp_shard)
fwd:
  %a = aten.neg %x kernel=0 : f32[4]
  %b = aten.neg %a kernel=0 : f32[4]
  %r = all_reduce %b axis=dp_shard : f32[4]
  return %r
)");
  const Simulation s = simulate(graph, unit_machine());
  std::string names;
  for (const Event& e : s.events) names += event_name(s, e) + "; ";
  CHECK(names == "aten.neg %a and 1 more; start all_reduce %r; all_reduce %r; wait for all_reduce %r; ");
}

TEST_CASE("chrome trace: a row per lane, microseconds") {
  const ir::Graph graph = ir::parse_or_throw(forward("ABw1v2"));
  const std::string trace = chrome_trace(simulate(graph, unit_machine()));
  CHECK(trace.find(R"("args":{"name":"dp_shard"})") != std::string::npos);
  CHECK(trace.find(R"("ts":32000000.000000,"dur":128000000.000000,"name":"aten.mm %y")") != std::string::npos);
}

}  // namespace
}  // namespace sfsdp::sim::simulate_test
