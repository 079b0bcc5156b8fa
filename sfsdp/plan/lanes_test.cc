// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/lanes.h"

#include <doctest/doctest.h>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/plan/step_plan.h"
#include "sfsdp/plan/verify/hazards.h"
#include "sfsdp/plan/verify/verify_plan.h"
#include "sfsdp/testing/random_graph.h"

namespace sfsdp::plan::lanes_test {
namespace {

// "c0>s1": a collective of the dp_shard lane begins after a kernel; r: the dp_replicate lane.
std::string edges_of(const ir::Graph& graph) {
  const auto lanes = communicators(graph);
  const auto letter = [&](size_t lane) { return lane == 0 ? 'c' : lanes[lane - 1].axes[0] == "dp_shard" ? 's' : 'r'; };
  std::string text;
  for (const Edge& e : make_edges(graph, lanes))
    text += concat(text.empty() ? "" : " ", letter(e.from.lane), e.from.number, '>', letter(e.to.lane), e.to.number);
  return text;
}

constexpr const char* kHead = R"(
graph mesh [dp_replicate=2, dp_shard=2] view local
  %w = param name=w : f32[2/dp_shard]
  %x = input name=x : f32[4] own(dp_replicate, dp_shard)
)";

TEST_CASE("edges: a collective after the kernels before its start, a kernel after the waits before it") {
  CHECK(edges_of(ir::parse_or_throw(concat(kHead, R"(
fwd:
  %c = aten.neg %w kernel=0 : f32[2/dp_shard]
  %g = all_gather.start %c axis=dp_shard dim=0 : async f32[4]
  %a = aten.neg %x kernel=1 : f32[4]
  %f = wait %g : f32[4]
  %b = aten.mul.Tensor %a, %f kernel=2 : f32[4]
  %d = aten.neg %b kernel=3 : f32[4]
  return %d
)"))) == "c0>s0 s0>c2");
}

TEST_CASE(
    "edges: what starts before any kernel follows the last one of the step before; what is sent on follows its lane") {
  // The gather of the next step overwrites what kernel 1 of this one reads; the all_reduce follows the reduce_scatter with no
  // kernel between them.
  CHECK(edges_of(ir::parse_or_throw(concat(kHead, R"(
fwd:
  %g = all_gather.start %w axis=dp_shard dim=0 : async f32[4]
  %a = aten.neg %x kernel=0 : f32[4]
  %f = wait %g : f32[4]
  %b = aten.mul.Tensor %a, %f kernel=1 : f32[4]
bwd:
  %rs = reduce_scatter.start %b axis=dp_shard dim=0 : async f32[2]
  %r = wait %rs : f32[2]
  %ar = all_reduce.start %r axis=dp_replicate : async f32[2]
  %s = wait %ar : f32[2]
  return %s
)"))) == "c1>s1 s0>c1 s1>r0 r0>c0 r0>s0");
}

TEST_CASE("edges: a loop over micro-batches waits for itself, in as few edges as one pass") {
  ir::Graph graph = ir::parse_or_throw(concat(kHead, R"(
fwd:
  %g = all_gather.start %w axis=dp_shard dim=0 : async f32[4]
  %f = wait %g : f32[4]
  %b = aten.mul.Tensor %x, %f kernel=0 : f32[4]
bwd:
  %rs = reduce_scatter.start %b axis=dp_shard dim=0 : async f32[2]
  %r = wait %rs : f32[2]
  %s = accumulate %r kernel=1 : f32[2]
opt:
  %n = aten.neg %s kernel=2 : f32[2]
  return %n
)"));
  graph.micro_batches = 4;
  // The gather follows the sum of the micro-batch before (c1) and the end of the step before (c2).
  CHECK(edges_of(graph) == "c0>s1 c1>s0 c2>s0 s0>c0 s1>c1");
  StepPlan plan = make_plan(graph.clone());
  CHECK(join(check_hazards(plan), "; ") == "");

  // The sum is carried from one to the next: it says so, and is held to it.
  const std::string text = print(plan);
  CHECK(text.find("  %s window offset=4096 bytes=4096 first=2 last=9 carried\n") != std::string::npos);
  CHECK(print(parse_plan(text)) == text);
  for (Buffer& b : plan.memory.buffers) b.carried = !b.carried;
  CHECK(join(check_hazards(plan), "; ").find("adds to a sum that is not carried") != std::string::npos);
  const std::string errors = join(verify_plan(plan), "; ");
  CHECK(errors.find("%s is not carried from one micro-batch to the next") != std::string::npos);
  CHECK(errors.find("%b is carried from one micro-batch to the next") != std::string::npos);
}

TEST_CASE("host: whoever draws reads the step's number and the micro-batch's, and is waited for before they change") {
  ir::Graph graph = ir::parse_or_throw(concat(kHead, R"(
fwd:
  %a = aten.neg %x kernel=0 : f32[4]
  %d, %s = dropout %a keep=0.5 kernel=1 stream=0 : f32[4], i64[2]
  %e = aten.neg %d kernel=2 : f32[4]
bwd:
  %g = dropout_backward %e, %s keep=0.5 kernel=3 : f32[4]
  return %g
)"));
  const HostLoad load = host_load(graph, communicators(graph));
  CHECK(load.before == std::vector<Task>{{0, 0}});
  CHECK(load.after == std::vector<Task>{{0, 1}});
}

TEST_CASE("edges: programs of random graphs have no hazards, and have some without their edges") {
  size_t needed = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    ir::Graph graph = testing::random_program(seed);
    graph.micro_batches = 1 + static_cast<int64_t>(seed % 4);
    StepPlan plan = make_plan(graph.clone());
    CHECK(join(check_hazards(plan), "; ") == "");
    if (plan.edges.empty()) continue;
    plan.edges.clear();
    needed += !check_hazards(plan).empty();
  }
  CHECK(needed > 50);
}

}  // namespace
}  // namespace sfsdp::plan::lanes_test
