// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/choose_units.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/passes/bucket/bucket.h"
#include "sfsdp/passes/bucket/reshard.h"
#include "sfsdp/passes/bucket/wrap.h"
#include "sfsdp/passes/overlap/pipeline_reductions.h"
#include "sfsdp/passes/overlap/prefetch_gathers.h"
#include "sfsdp/passes/overlap/schedule_attrs.h"
#include "sfsdp/passes/overlap/sink_waits.h"
#include "sfsdp/passes/overlap/split_collectives.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/passes/predict.h"
#include "sfsdp/passes/registry.h"
#include "sfsdp/passes/step_profile.h"
#include "sfsdp/plan/memory_plan.h"
#include "sfsdp/sim/simulate.h"
#include "sfsdp/testing/sharded_step.h"

namespace sfsdp::passes {
namespace {

constexpr int64_t kPlenty = int64_t{1} << 50;

// A step over `n` parameters of random sizes, on a machine that is compute- or communication-bound by chance.
struct Case {
  ir::Graph graph;
  cost::Machine machine;
  StepProfile profile;
  int64_t micro_batches = 1;
};

//   step, micro_batches: bf16 is chosen by chance
Case random_case(uint64_t seed, size_t n, testing::ShardedStep step = {}, int64_t micro_batches = 1) {
  std::mt19937_64 random(seed);
  const auto pick = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  std::vector<testing::Param> params;
  for (size_t i = 0; i < n; ++i) params.push_back({concat("p", i), pick(1, 400), pick(1, 400)});
  step.bf16 = pick(0, 1) == 1;
  Case c{ir::parse_or_throw(testing::sharded_step_text(4, params, step)), {}, {}, micro_batches};
  c.machine.name = c.machine.device = "test";
  c.machine.peak_bf16 = c.machine.peak_f32 = 1e12;
  c.machine.memory_bandwidth = 1e9 * static_cast<double>(pick(1, 20));
  c.machine.memory_bytes = 1e12;
  c.machine.launch = 1e-6;
  c.machine.devices_per_node = 4;
  c.machine.node = {.bandwidth = 1e9, .base_latency = 1e-6 * static_cast<double>(pick(1, 40)), .hop_latency = 1e-6};
  c.machine.network = c.machine.node;
  c.profile = profile_step(c.graph, c.machine, cost::Execution::Fused, micro_batches);
  return c;
}

UnitChoice random_choice(std::mt19937_64& random) {
  UnitChoice unit;
  unit.keep = random() % 3 == 0;
  unit.forward_depth = static_cast<int64_t>(random() % 4);
  unit.backward_depth = static_cast<int64_t>(random() % 4);
  unit.sink_depth = 1 + static_cast<int64_t>(random() % 3);
  unit.forward_before = random() % 2 == 0;
  unit.backward_before = random() % 2 == 0;
  unit.sink_before = random() % 2 == 0;
  return unit;
}

Schedule random_schedule(std::mt19937_64& random, size_t n) {
  Schedule schedule;
  for (size_t i = 0; i < n; ++i) {
    if (i == 0 || random() % 2 == 0) {
      schedule.push_back(random_choice(random));
      schedule.back().first = i;
    }
    schedule.back().end = i + 1;
  }
  return schedule;
}

// The graph that the passes make of a schedule.
ir::Graph scheduled(const Case& c, const Schedule& schedule) {
  ir::Graph graph = c.graph.clone();
  PassContext ctx;
  for (const UnitChoice& unit : schedule)
    for (size_t i = unit.first; i < unit.end; ++i) {
      ir::Op* param = graph.find_param(c.profile.params[i].name);
      param->attrs["unit"] = c.profile.params[unit.first].name;
      if (unit.keep) param->attrs["keep"] = true;
      write_schedule(*param, unit);
    }
  reshard(graph, {}, ctx);
  bucket(graph, {}, ctx);
  split_collectives(graph, ctx);
  prefetch_gathers(graph, {}, ctx);
  sink_waits(graph, {}, ctx);
  pipeline_reductions(graph, {.micro_batches = c.micro_batches}, ctx);
  return graph;
}

// All ways to cut n parameters into units, times all choices of what stays gathered, times the variants of all units.
void for_each_schedule(size_t n, const std::function<void(const Schedule&)>& body) {
  for (uint64_t cuts = 0; cuts < uint64_t{1} << (n - 1); ++cuts) {
    Schedule units = {{.first = 0, .end = 1, .reason = ""}};
    for (size_t i = 1; i < n; ++i) {
      if (cuts >> (i - 1) & 1) units.push_back({.first = i, .end = i, .reason = ""});
      ++units.back().end;
    }
    for (uint64_t keep = 0; keep < uint64_t{1} << units.size(); ++keep)
      for (uint64_t variant = 0; variant < 8; ++variant)
        for (int64_t depth = 1; depth <= 2; ++depth) {
          for (size_t u = 0; u < units.size(); ++u) {
            units[u].keep = keep >> u & 1;
            units[u].forward_before = variant & 1;
            units[u].backward_before = variant >> 1 & 1;
            units[u].sink_before = variant >> 2 & 1;
            units[u].forward_depth = units[u].backward_depth = depth;
          }
          body(units);
        }
  }
}

}  // namespace

TEST_CASE("a schedule is predicted as the simulator times the graph that is made of it") {
  for (uint64_t seed = 0; seed < 120; ++seed) {
    CAPTURE(seed);
    const testing::ShardedStep step = {.replicas = 1 + static_cast<int64_t>(seed / 3 % 2),
                                       .reduce_once = seed % 3 == 2};
    const Case c = random_case(seed, 2 + seed % 6, step, seed % 3 == 0 ? 1 : 3);
    std::mt19937_64 random(seed);
    const Schedule schedule = random_schedule(random, c.profile.params.size());
    const ir::Graph graph = scheduled(c, schedule);
    const sim::Simulation simulation = sim::simulate(graph, c.machine, {.micro_batches = c.micro_batches});
    const Prediction prediction = predict(c.profile, schedule);
    CHECK(prediction.seconds == doctest::Approx(simulation.step_seconds).epsilon(0.01));
    const plan::MemoryPlan memory =
        plan::plan_memory(graph, plan::memory_options(graph, simulation.kernels, c.micro_batches));
    CHECK(static_cast<double>(prediction.peak_bytes) ==
          doctest::Approx(static_cast<double>(memory.state_bytes + memory.live_bytes)).epsilon(0.05));
  }
}

TEST_CASE("search is within a per cent of the best of all schedules") {
  double gap_manual = 0, gap_greedy = 0, worst = 1;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    const size_t n = 2 + seed % 5;
    const Case c = random_case(1000 + seed, n);
    double best = std::numeric_limits<double>::max();
    Predictor predictor(c.profile);
    for_each_schedule(n, [&](const Schedule& s) { best = std::min(best, predictor.seconds(s)); });
    Schedule manual;
    for (size_t i = 0; i < n; ++i) manual.push_back({.first = i, .end = i + 1, .reason = ""});
    const Schedule greedy = greedy_units(c.profile, kPlenty);
    const Schedule found = search_units(c.profile, {manual, greedy}, {.budget_bytes = kPlenty});
    const double ratio = predict(c.profile, found).seconds / best;
    CHECK(ratio <= 1.01);
    worst = std::max(worst, ratio);
    gap_manual += predict(c.profile, manual).seconds / best - 1;
    gap_greedy += predict(c.profile, greedy).seconds / best - 1;
  }
  MESSAGE("search at worst ", worst, " of the best; mean gap of a unit per parameter ", gap_manual / 2,
          " %, of the greedy rule ", gap_greedy / 2, " %");
}

TEST_CASE("search obeys the byte budget, and takes the smallest where none fits") {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    const Case c = random_case(5000 + seed, 5);
    Schedule manual;
    for (size_t i = 0; i < 5; ++i) manual.push_back({.first = i, .end = i + 1, .reason = ""});
    const int64_t least = predict(c.profile, manual).peak_bytes;
    const Schedule fits = search_units(c.profile, {manual}, {.budget_bytes = least});
    CHECK(predict(c.profile, fits).peak_bytes <= least);
    CHECK(predict(c.profile, fits).seconds <= predict(c.profile, manual).seconds * (1 + 1e-9));
    const Schedule none = search_units(c.profile, {manual}, {.budget_bytes = 1});
    CHECK(predict(c.profile, none).peak_bytes <= least);
  }
}

TEST_CASE("the greedy rule says why each unit ends, and obeys it") {
  const Case c = random_case(3, 6);
  const Schedule schedule = greedy_units(c.profile, kPlenty);
  size_t next = 0;
  for (const UnitChoice& unit : schedule) {
    CHECK(unit.first == next);
    CHECK(unit.end > unit.first);
    CHECK(!unit.reason.empty());
    next = unit.end;
  }
  CHECK(next == 6);
  // Without memory for two of anything, every parameter is alone.
  for (const UnitChoice& unit : greedy_units(c.profile, 1)) CHECK(unit.end == unit.first + 1);
}

TEST_CASE("wrap by cost needs a machine, and writes units, reasons and schedule") {
  Case c = random_case(9, 4);
  PassContext ctx;
  CHECK_THROWS_WITH_AS(wrap(c.graph, {.mode = "auto"}, ctx), doctest::Contains("machine"), UserError);
  CHECK_THROWS_WITH_AS(wrap(c.graph, {.mode = "greedy"}, ctx), doctest::Contains("manual, auto or search"), UserError);
  CHECK(wrap(c.graph, {.mode = "search", .machine = &c.machine, .choose_reshard = true}, ctx));
  for (const auto& op : c.graph.ops())
    if (op->is("param")) {
      CHECK(op->has_attr("unit"));
      CHECK(op->has_attr("reason"));
      CHECK(op->has_attr("forward_depth"));
    }
}

TEST_CASE("search takes another schedule where its first does not fit with addresses") {
  Case c = random_case(9, 4);
  const auto any_kept = [](const ir::Graph& graph) {
    return std::ranges::any_of(graph.ops(), [](const auto& op) { return op->is("param") && op->has_attr("keep"); });
  };
  const auto choose = [&](double memory, const std::function<void(ir::Graph&)>& finish) {
    ir::Graph graph = c.graph.clone();
    c.machine.memory_bytes = memory;
    PassContext ctx;
    ctx.finish = finish;
    wrap(graph, {.mode = "search", .machine = &c.machine, .choose_reshard = true}, ctx);
    return graph;
  };
  int copies = 0;
  const auto grows_where_kept = [&](ir::Graph& copy) {
    ++copies;
    for (const auto& op : copy.ops())
      if (op->is("param")) CHECK(op->has_attr("unit"));
    ir::Value* any = copy.ops().back()->result();
    if (any_kept(copy)) copy.add("aten.neg", {any}, {{"hole", ir::Type::tensor(ir::DType::f32, {int64_t{1} << 40})}});
  };
  REQUIRE(any_kept(choose(1e12, grows_where_kept)));
  CHECK(copies == 0);  // far from the memory's end
  Schedule all;
  for (size_t i = 0; i < c.profile.params.size(); ++i) all.push_back({.first = i, .end = i + 1, .reason = ""});
  all = search_units(c.profile, {all}, {.budget_bytes = int64_t{1} << 40, .choose_reshard = true});
  const double tight = static_cast<double>(predict(c.profile, all).peak_bytes) / 0.95 + 1;
  const ir::Graph first = choose(tight, {});
  CHECK(any_kept(first));
  CHECK(ir::print(choose(tight, [&](ir::Graph&) { ++copies; })) == ir::print(first));
  CHECK(copies == 1);
  CHECK(ir::print(choose(tight, grows_where_kept)) != ir::print(first));
  CHECK(copies >= 2);
}

}  // namespace sfsdp::passes
