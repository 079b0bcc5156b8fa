// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/sim/links.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "sfsdp/ir/parser.h"
#include "sfsdp/sim/simulate.h"

namespace sfsdp::sim::links_test {
namespace {

TEST_CASE("links: transfers of one rank on one link share it; on two links they do not") {
  Links links(2);
  const std::vector<size_t> zero = {0}, both = {0, 1}, one = {1};
  std::vector<Links::Finish> changed;
  const auto take = [&] {
    std::map<size_t, double> at;
    for (const Links::Finish& f : changed) at[f.transfer] = f.at;
    changed.clear();
    return at;
  };
  const size_t a = links.begin(zero, {.network = 10}, 0, changed);
  CHECK(take() == std::map<size_t, double>{{a, 10}});
  const size_t b = links.begin(both, {.node = 4}, 1, changed);  // the other link: a is not mentioned
  CHECK(take() == std::map<size_t, double>{{b, 5}});
  const size_t c = links.begin(both, {.network = 8}, 2, changed);  // a has 8 s left, both at half speed now
  CHECK(take() == std::map<size_t, double>{{a, 18}, {c, 18}});
  const size_t d = links.begin(one, {.node = 2, .network = 2}, 3, changed);  // c still at half speed, for rank 0
  CHECK(take() == std::map<size_t, double>{{b, 7}, {d, 7}});
  links.end(d, 7, changed);
  links.end(b, 7, changed);
  take();
  links.end(a, 18, changed);
  CHECK(take() == std::map<size_t, double>{{c, 18}});
}

TEST_CASE("links: a transfer that leaves a link partly idle slows down only what asks for more than the rest") {
  Links links(1);
  const std::vector<size_t> zero = {0};
  std::vector<Links::Finish> changed;
  links.begin(zero, {.node = 2, .network = 8}, 0, changed);  // a quarter of the node link
  changed.clear();
  links.begin(zero, {.node = 6, .network = 0}, 0, changed);
  REQUIRE(changed.size() == 2);
  for (const Links::Finish& f : changed) CHECK(f.at == doctest::Approx(f.transfer == 0 ? 10 : 7.5));  // 1.25 asked of 1
}

cost::Machine machine_of(int64_t devices_per_node) {
  cost::Machine m;
  m.peak_bf16 = m.peak_f32 = 1;
  m.matmul_efficiency = m.attention_efficiency = m.memory_efficiency = 1;
  m.memory_bandwidth = 1e9;
  m.devices_per_node = devices_per_node;
  m.node = {1, 0, 0};
  m.network = {1, 0, 0};
  return m;
}

// A gather over the shards and a reduction over the replicas, in flight at once, then a product of 128 s.
constexpr const char* kTwoCommunicators = R"(
graph mesh [dp_replicate=2, dp_shard=4] view local
  %a = param name=a : f32[16/dp_shard]
  %x = input name=x : f32[4, 4] own(dp_shard)
fwd:
  %as = all_gather.start %a axis=dp_shard dim=0 : async f32[64]
  %rs = all_reduce.start %x axis=dp_replicate : async f32[4, 4]
  %y = aten.mm %x, %x : f32[4, 4]
  %aw = wait %as : f32[64]
  %rw = wait %rs : f32[4, 4]
  %z = aten.mm %rw, %y : f32[4, 4]
  return %z, %aw
)";

TEST_CASE("simulate: communicators that share a link slow each other down, others do not") {
  const ir::Graph graph = ir::parse_or_throw(kTwoCommunicators);
  const auto ends = [&](int64_t devices_per_node) {
    const Simulation s = simulate(graph, machine_of(devices_per_node));
    std::map<std::string, double> end;
    for (const Event& e : s.events)
      if (e.kind == Event::Collective) end[s.lanes[e.lane]] = e.end;
    end["contention"] = s.contention_seconds.at("all_gather") + s.contention_seconds.at("all_reduce");
    return end;
  };
  // 4 of a node: the gather passes 256 · 3/4 bytes inside; 1 rank of each of 2 nodes: 2 · 64 · 1/2 bytes outside.
  CHECK(ends(4) == std::map<std::string, double>{{"dp_shard", 192}, {"dp_replicate", 64}, {"contention", 0}});
  // All outside: both at half speed until the reduction has moved its 64 bytes, at 128 s; the gather has 128 left then.
  CHECK(ends(1) == std::map<std::string, double>{{"dp_shard", 256}, {"dp_replicate", 128}, {"contention", 128}});
}

TEST_CASE("simulate: a timeline per rank gives what one timeline for all gives") {
  ir::Graph graph = ir::parse_or_throw(kTwoCommunicators);
  for (const int64_t devices : {1, 2, 4, 8})
    for (const int64_t micro_batches : {1, 3}) {
      graph.micro_batches = micro_batches;
      const Simulation one = simulate(graph, machine_of(devices));
      const Simulation all = simulate(graph, machine_of(devices), {.timelines = Timelines::PerRank});
      CHECK(one.step_seconds == all.step_seconds);
      CHECK(one.exposed_seconds == all.exposed_seconds);
      CHECK(one.contention_seconds == all.contention_seconds);
      REQUIRE(one.events.size() == all.events.size());
      for (size_t i = 0; i < one.events.size(); ++i) {
        CHECK(one.events[i].op == all.events[i].op);
        CHECK(one.events[i].begin == all.events[i].begin);
        CHECK(one.events[i].end == all.events[i].end);
      }
    }
}

TEST_CASE("simulate: a straggler holds up its own groups") {
  const ir::Graph graph = ir::parse_or_throw(kTwoCommunicators);
  const double alike = simulate(graph, machine_of(1)).step_seconds;
  const Simulation jittered = simulate(graph, machine_of(1), {.jitter = 0.5, .seed = 7});
  CHECK(jittered.step_seconds > alike);
  CHECK(jittered.step_seconds <= 1.5 * alike);
}

}  // namespace
}  // namespace sfsdp::sim::links_test
