// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tune/search.h"
#include "sfsdp/testing/source_dir.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/passes/bucket/bucket.h"
#include "sfsdp/passes/bucket/reshard.h"
#include "sfsdp/passes/fuse/fuse.h"
#include "sfsdp/passes/overlap/early_all_reduces.h"
#include "sfsdp/passes/overlap/prefetch_gathers.h"
#include "sfsdp/passes/overlap/sink_waits.h"
#include "sfsdp/passes/overlap/split_collectives.h"
#include "sfsdp/plan/memory_plan.h"
#include "sfsdp/sim/simulate.h"
#include "sfsdp/testing/sharded_step.h"
#include "sfsdp/tune/simulated.h"
#include "sfsdp/tune/tune.h"
#include "sfsdp/tune/unit_memory.h"

namespace sfsdp::tune::search_test {
namespace {

using passes::Side;

constexpr int64_t kPlenty = int64_t{1} << 50;

// A step over `n` parameters of random sizes, on a machine that is compute- or communication-bound by chance.
struct Case {
  ir::Graph graph;
  cost::Machine machine;
  StepProfile profile;
};

//   step, micro_batches: bf16 is chosen by chance
//   most: rows, and columns, of a parameter
Case random_case(uint64_t seed, size_t n, testing::ShardedStep step = {}, int64_t micro_batches = 1,
                 int64_t most = 400) {
  std::mt19937_64 random(seed);
  const auto pick = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  std::vector<testing::Param> params;
  for (size_t i = 0; i < n; ++i) params.push_back({concat("p", i), pick(1, most), pick(1, most)});
  step.bf16 = pick(0, 1) == 1;
  Case c{ir::parse_or_throw(testing::sharded_step_text(4, params, step)), {}, {}};
  c.graph.micro_batches = micro_batches;
  c.machine.name = c.machine.device = "test";
  c.machine.peak_bf16 = c.machine.peak_f32 = 1e12;
  c.machine.memory_bandwidth = 1e9 * static_cast<double>(pick(1, 20));
  c.machine.memory_bytes = 1e12;
  c.machine.launch = 1e-6;
  c.machine.devices_per_node = 4;
  c.machine.node = {.bandwidth = 1e9, .base_latency = 1e-6 * static_cast<double>(pick(1, 40)), .hop_latency = 1e-6};
  c.machine.network = c.machine.node;
  c.profile = profile_step(c.graph, c.machine);
  return c;
}

UnitChoice random_choice(std::mt19937_64& random) {
  UnitChoice unit;
  unit.keep = random() % 3 == 0;
  unit.order.forward_depth = static_cast<int64_t>(random() % 4);
  unit.order.backward_depth = static_cast<int64_t>(random() % 4);
  unit.order.sink_depth = static_cast<int64_t>(random() % 4);
  unit.order.forward = random() % 2 == 0 ? Side::Before : Side::After;
  unit.order.backward = random() % 2 == 0 ? Side::Before : Side::After;
  unit.order.sink = random() % 2 == 0 ? Side::Before : Side::After;
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

// These steps are small: whole pages would be a good part of their memory, which the estimate does not round.
const plan::MemoryOptions kSmallPages = {.target = {.name = "test", .window_alignment = 256}};

// The graph that the passes make of a schedule.
ir::Graph scheduled(const Case& c, const Schedule& schedule) {
  ir::Graph graph = c.graph.clone();
  passes::PassContext ctx;
  write_units(graph, c.profile, schedule);
  passes::reshard(graph, {}, ctx);
  passes::bucket(graph, {}, ctx);
  passes::split_collectives(graph, ctx);
  passes::prefetch_gathers(graph, {.max_bytes = c.profile.max_gather_bytes}, ctx);
  passes::sink_waits(graph, {}, ctx);
  passes::early_all_reduces(graph, ctx);
  passes::fuse(graph, {}, ctx);
  return graph;
}

}  // namespace

TEST_CASE("units are known to need what the plan of the graph that is made of them has alive") {
  for (uint64_t seed = 0; seed < 120; ++seed) {
    CAPTURE(seed);
    const testing::ShardedStep step = {.replicas = 1 + static_cast<int64_t>(seed / 3 % 2),
                                       .reduce_once = seed % 3 == 2,
                                       .tokens = 1 + static_cast<int64_t>(seed % 10) * 300};
    const Case c = random_case(seed, 2 + seed % 6, step, seed % 3 == 0 ? 1 : 3);
    std::mt19937_64 random(seed);
    const Schedule schedule = random_schedule(random, c.profile.params.size());
    const plan::MemoryPlan memory = plan::plan_memory(scheduled(c, schedule), kSmallPages);
    CHECK(static_cast<double>(peak_of_units(c.profile, schedule)) ==
          doctest::Approx(static_cast<double>(memory.state_bytes + memory.live_bytes)).epsilon(0.05));
  }
}

passes::StepFigures simulate_schedule(const Case& c, const Schedule& schedule) {
  const ir::Graph graph = scheduled(c, schedule);
  const sim::Simulation simulation = sim::simulate(graph, c.machine);
  const plan::MemoryPlan memory = plan::plan_memory(graph, kSmallPages);
  return {simulation.step_seconds, simulation.exposed(), memory.state_bytes + memory.live_bytes};
}

Schedule search_of(const Case& c, const std::vector<Schedule>& starts, int64_t memory, int64_t simulations = 600) {
  return search_units(c.profile, starts, {.memory = static_cast<double>(memory), .simulations = simulations},
                      [&](const Schedule& schedule) { return simulate_schedule(c, schedule); });
}

Schedule unit_per_parameter(const Case& c) {
  Schedule all;
  for (size_t i = 0; i < c.profile.params.size(); ++i) all.push_back({.first = i, .end = i + 1});
  return all;
}

// Both ways to cut two parameters, and every unit with every choice of its own at depths of one.
std::vector<Schedule> all_schedules_of_two() {
  const auto choice = [](uint64_t bits, size_t first, size_t end) {
    UnitChoice unit{.first = first, .end = end, .keep = (bits & 1) != 0};
    unit.order.forward = (bits & 2) != 0 ? Side::Before : Side::After;
    unit.order.backward = (bits & 4) != 0 ? Side::Before : Side::After;
    unit.order.sink = (bits & 8) != 0 ? Side::Before : Side::After;
    return unit;
  };
  std::vector<Schedule> all;
  for (uint64_t first = 0; first < 16; ++first) {
    all.push_back({choice(first, 0, 2)});
    for (uint64_t second = 0; second < 16; ++second) all.push_back({choice(first, 0, 1), choice(second, 1, 2)});
  }
  return all;
}

// Steps of two parameters against all schedules, of more against random ones; two thirds of the steps have products.
TEST_CASE("search against the best schedules in the simulator, in any memory and in that of a unit per parameter") {
  double worst = 0, worst_bounded = 0, worst_to_manual = 0;
  for (uint64_t seed = 0; seed < 48; ++seed) {
    if (seed % 16 < 8 ? seed % 2 == 1 : seed / 16 % 2 != seed % 2) continue;
    CAPTURE(seed);
    const size_t n = seed % 16 < 8 ? 2 : seed % 16 - 5;  // 3 to 10: too many to try them all
    const Case c = random_case(9000 + seed, n, {.tokens = seed < 16 ? 0 : 1 + static_cast<int64_t>(seed % 5) * 500});
    std::vector<Schedule> tried = all_schedules_of_two();
    if (n > 2) {
      std::mt19937_64 random(seed);
      for (Schedule& s : tried) s = random_schedule(random, n);
    }
    const Schedule manual = unit_per_parameter(c), greedy = greedy_units(c.profile, kPlenty);
    const passes::StepFigures named = simulate_schedule(c, manual);
    const passes::StepFigures found = simulate_schedule(c, search_of(c, {manual, greedy}, kPlenty));
    const passes::StepFigures bounded = simulate_schedule(c, search_of(c, {manual, greedy}, named.peak_bytes));
    double best = named.seconds, best_bounded = named.seconds;
    for (const Schedule& s : tried) {
      const passes::StepFigures other = simulate_schedule(c, s);
      best = std::min(best, other.seconds);
      if (other.peak_bytes <= named.peak_bytes) best_bounded = std::min(best_bounded, other.seconds);
    }
    worst = std::max(worst, found.seconds / best);
    worst_bounded = std::max(worst_bounded, bounded.seconds / best_bounded);
    worst_to_manual = std::max(worst_to_manual, bounded.seconds / named.seconds);
    CHECK(found.seconds <= 1.001 * best);
    CHECK(bounded.seconds <= 1.001 * best_bounded);
    CHECK(bounded.seconds <= 1.001 * named.seconds);
    CHECK(bounded.peak_bytes <= named.peak_bytes);
  }
  MESSAGE("search at worst ", worst, " of the best, in the memory of a unit per parameter ", worst_bounded,
          ", and there at worst ", worst_to_manual, " of a unit per parameter");
}

// Steps of a few layers on H100s, with what users may set; every second one in the memory that units by name take.
TEST_CASE("search is never slower in the simulator than units by name and the greedy rule, and fits where they do") {
  const std::string file = concat(testing::source_dir(), "/machines/dgx_h100.toml");
  const cost::Machine machine = cost::load_machine(file);
  for (uint64_t seed = 0; seed < 32; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    std::vector<testing::Param> params;
    for (uint64_t i = 0; i < 3 + seed % 10; ++i)
      params.push_back({concat("layers.", i / 3, ".w", i), 1 + static_cast<int64_t>(random() % 8192),
                        1 + static_cast<int64_t>(random() % 8192)});
    const testing::ShardedStep step = {.bf16 = seed % 3 > 0, .tokens = 1 + static_cast<int64_t>(random() % 8192)};
    const std::string text = testing::sharded_step_text(seed % 4 < 2 ? 8 : 64, params, step);
    passes::PipelineOptions options;
    passes::set_order(options, seed % 3 == 0 ? "simplefsdp" : seed % 3 == 1 ? "autoparallel" : "graphtrainer");
    options.prefetch.depth = static_cast<int64_t>(seed % 5 == 0 ? 2 : seed % 5 == 1 ? 0 : 1);
    options.reshard.keep_last = seed % 7 < 5;
    const auto made = [&](Wrap wrap, double memory_gib) {
      ir::Graph graph = ir::parse_or_throw(text);
      std::optional<plan::BucketLayouts> layout;
      const TuneOptions tune = {
          .wrap = wrap, .choose_reshard = seed % 4 == 0, .machine = file, .memory_gib = memory_gib};
      run_pipeline(graph, options, tune, layout);
      return simulated(graph, machine);
    };
    const passes::StepFigures named = made(Wrap::Manual, 0);
    const double memory = seed % 2 == 0 ? machine.memory_bytes : static_cast<double>(named.peak_bytes);
    const double memory_gib = memory / (1 << 30);
    const passes::StepFigures greedy = made(Wrap::Auto, memory_gib), found = made(Wrap::Search, memory_gib);
    CHECK(static_cast<double>(found.peak_bytes) <= memory);
    CHECK(found.seconds <= named.seconds * (1 + 1e-9));
    if (static_cast<double>(greedy.peak_bytes) <= memory) CHECK(found.seconds <= greedy.seconds * (1 + 1e-9));
  }
}

TEST_CASE("search obeys the memory and the number of simulations, and takes the smallest where none fits") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    const Case c = random_case(5000 + seed, 5);
    const Schedule manual = unit_per_parameter(c);
    const passes::StepFigures named = simulate_schedule(c, manual);
    const passes::StepFigures fits = simulate_schedule(c, search_of(c, {manual}, named.peak_bytes, 100));
    CHECK(fits.peak_bytes <= named.peak_bytes);
    CHECK(fits.seconds <= named.seconds * (1 + 1e-9));
    CHECK(simulate_schedule(c, search_of(c, {manual}, 1, 100)).peak_bytes <= named.peak_bytes);
    int64_t simulations = 0;
    search_units(c.profile, {manual}, {.memory = 1e12, .simulations = 7}, [&](const Schedule& schedule) {
      ++simulations;
      return simulate_schedule(c, schedule);
    });
    CHECK(simulations <= 8);  // that of the first start is not among the seven
  }
}

TEST_CASE("the greedy rule says why each unit ends, and obeys it") {
  const Case c = random_case(3, 6);
  const Schedule schedule = greedy_units(c.profile, kPlenty);
  size_t next = 0;
  for (const UnitChoice& unit : schedule) {
    CHECK(unit.first == next);
    CHECK(unit.end > unit.first);
    CHECK(unit.reason != Reason::Named);
    next = unit.end;
  }
  CHECK(next == 6);
  // Without memory for two of anything, every parameter is alone.
  for (const UnitChoice& unit : greedy_units(c.profile, 1)) CHECK(unit.end == unit.first + 1);
}

TEST_CASE("a schedule is written on params and read back") {
  Case c = random_case(9, 6);
  std::mt19937_64 random(9);
  Schedule schedule = random_schedule(random, 6);
  schedule[0].reason = Reason::Memory;
  write_units(c.graph, c.profile, schedule);
  std::map<std::string, const ir::Op*> param_of;
  for (const auto& op : c.graph.ops())
    if (op->is("param")) param_of[op->attr<std::string>("name")] = op.get();
  const Schedule read = read_units(c.profile, param_of);
  REQUIRE(read.size() == schedule.size());
  for (size_t u = 0; u < read.size(); ++u) {
    CHECK(read[u].first == schedule[u].first);
    CHECK(read[u].end == schedule[u].end);
    CHECK(read[u].keep == schedule[u].keep);
    CHECK(read[u].reason == schedule[u].reason);
    CHECK(read[u].order == schedule[u].order);
  }
}

TEST_CASE("search keeps fewer units gathered where addresses take what is alive beyond the memory") {
  const Case c = random_case(9, 4);
  const Schedule all = unit_per_parameter(c);
  const auto any_kept = [](const Schedule& s) { return std::ranges::any_of(s, &UnitChoice::keep); };
  // Addresses take a fifth more than what is alive.
  const auto loose = [&](const Schedule& s) {
    passes::StepFigures figures = simulate_schedule(c, s);
    figures.peak_bytes += (figures.peak_bytes - c.profile.state_bytes) / 5;
    return figures;
  };
  const Schedule best = search_units(c.profile, {all}, {1e12, 500}, loose);
  CHECK(any_kept(best));
  const double tight = static_cast<double>(loose(best).peak_bytes) - 1;
  const Schedule second = search_units(c.profile, {all}, {tight, 500}, loose);
  CHECK(static_cast<double>(loose(second).peak_bytes) <= tight);
  CHECK(loose(second).seconds <= loose(all).seconds);
}

TEST_CASE("auto runs out of memory nowhere where units by name fit") {
  const cost::Target target = cost::target_of(cost::load_machine("dgx_h100"));
  for (const char* units : {"[p0, p1, p2], [p3, p4], [p5, p6, p7, p8], p9, p10, p11", "p0,p1,p2,p3,p4,p5,p6,p7,p8,p9"})
    for (uint64_t seed = 0; seed < 20; ++seed) {
      CAPTURE(seed);
      const int64_t tokens = seed % 2 == 0 ? 4096 : 65536;
      const Case c = random_case(seed, 12, {.tokens = tokens}, 1, 40'000);
      const auto peak = [&](const TuneOptions& tune) {
        ir::Graph graph = c.graph.clone();
        std::optional<plan::BucketLayouts> layout;
        run_pipeline(graph, {.wrap = {.units = units}}, tune, layout);
        return plan::plan_memory(graph, {.target = target}).peak();
      };
      TuneOptions tune = {.wrap = Wrap::Auto, .choose_reshard = seed % 3 == 0, .machine = "dgx_h100"};
      const int64_t by_name = peak({});
      tune.memory_gib = static_cast<double>(by_name) / (1 << 30);
      CHECK(peak(tune) <= by_name);
    }
}

TEST_CASE("units by cost need a machine, and parameters that are stored flat") {
  const auto says = [](const passes::PipelineOptions& options, const char* part) {
    ir::Graph graph;
    std::optional<plan::BucketLayouts> layout;
    CHECK_THROWS_WITH_AS(run_pipeline(graph, options, {.wrap = Wrap::Auto}, layout), doctest::Contains(part),
                         UserError);
  };
  says({}, "TuneOptions::wrap = Wrap::Auto has no machine");
  says({.flat = false}, "with DataParallelOptions::layout = ParameterLayout::Dim0");
  says({.gather_once = true}, "at DataParallelOptions::zero_stage 1 or 2");
}

}  // namespace sfsdp::tune::search_test
