// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/memory_plan.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "sfsdp/ir/parser.h"
#include "sfsdp/testing/random_graph.h"

namespace sfsdp::plan {
namespace {

constexpr const char* kText = R"(
graph mesh [dp_shard=2] view local
  %w = param name=w : f32[64/dp_shard]
  %x = input name=x : f32[128] own(dp_shard)
fwd:
  %s = all_gather.start %w axis=dp_shard dim=0 : async f32[128]
  %full = wait %s : f32[128]
  %part = view %full offset=64 : f32[64]
  %a = aten.neg %part : f32[64]
  %b = aten.neg %a : f32[64]
  %c = aten.add.Tensor %b, %a alpha=1 : f32[64]
  return %c
)";

TEST_CASE("memory plan: a buffer lives from its op to the last reader of any view; state lies outside") {
  const ir::Graph graph = ir::parse_or_throw(kText);
  const MemoryPlan plan = plan_memory(graph);
  CHECK(plan.state_bytes == 4096);  // it is sent as it is stored: a page of the window
  std::string got;
  for (const Buffer& b : plan.buffers)
    got += b.value->name() + " " + std::to_string(b.bytes) + " " + std::to_string(b.first) + "-" +
           std::to_string(b.last) + ", ";
  CHECK(got == "x 512 1-1, s 4096 2-5, a 4096 5-7, b 4096 6-7, c 4096 7-8, ");
  // a dies at c, which is computed from it: three at once
  CHECK(plan.live_bytes == 3 * 4096);
  CHECK(plan.peak_position == 7);
  CHECK(plan.arena_bytes == 512 + 3 * 4096);
  CHECK(plan.region_bytes == std::array<int64_t, kRegions>{0, 4 * 4096, 512});
  CHECK(plan.buffers[1].offset == 4096);  // above the parameter
  CHECK(plan.workspace_bytes >= 4096);
  CHECK(plan.peak() == 4096 + plan.arena_bytes + plan.workspace_bytes);
  const auto shares = alive_at(plan, 5, [](const ir::Value& v) { return v.name(); });
  REQUIRE(shares.size() == 2);
  CHECK(shares[0].name == "a");
  CHECK(check_memory_plan(plan).empty());
}

TEST_CASE("memory plan: a sum over micro-batches is alive in all of them") {
  ir::Graph graph = ir::parse_or_throw(R"(
graph mesh [one=1] view local
  %x = input name=x : f32[64]
  %before = aten.neg %x : f32[64]
fwd:
  %a = aten.neg %before : f32[64]
bwd:
  %g = aten.neg %a : f32[64]
  %sum = accumulate %g : f32[64]
  %b = aten.neg %a : f32[64]
clip:
  %c = aten.neg %sum : f32[64]
  return %c
)");
  graph.micro_batches = 2;
  std::string lives;
  for (const Buffer& b : plan_memory(graph, {}).buffers)
    lives += b.value->name() + " " + std::to_string(b.first) + "-" + std::to_string(b.last) + ", ";
  CHECK(lives == "x 0-1, before 1-5, a 2-5, sum 2-6, g 3-4, b 5-5, c 6-7, ");
}

TEST_CASE("memory plan: a gather before all micro-batches lives to their end, what it sends to the first wait") {
  ir::Graph graph = ir::parse_or_throw(R"(
graph mesh [dp_shard=2] view local
  %w = param name=w : f32[64/dp_shard]
  %cast = cast %w : bf16[64/dp_shard]
  %s = all_gather.start %cast axis=dp_shard dim=0 : async bf16[128]
fwd:
  %full = wait %s : bf16[128]
  %a = aten.neg %full : bf16[128]
bwd:
  %b = aten.neg %a : bf16[128]
  return %b
)");
  graph.micro_batches = 2;
  std::string lives;
  for (const Buffer& b : plan_memory(graph, {}).buffers)
    lives += b.value->name() + " " + std::to_string(b.first) + "-" + std::to_string(b.last) + ", ";
  CHECK(lives == "cast 1-3, s 2-5, a 4-5, b 5-6, ");
}

TEST_CASE("memory plan: a kernel reads and writes from its first op to its last; what stays inside has no memory") {
  const ir::Graph graph = ir::parse_or_throw(R"(
graph mesh [one=1] view local
  %x = input name=x : f32[64]
bwd:
  %g = aten.neg %x kernel=0 : f32[64]
  %other = aten.neg %x kernel=1 : f32[64]
  %cast = cast %g kernel=2 : bf16[64]
  %packed = pack [%cast] offsets=[0] kernel=2 : bf16[64]
  %a = aten.neg %other kernel=3 : f32[64]
  %end = aten.neg %a kernel=3 : f32[64]
  return %packed, %a, %end
)");
  std::string text;
  for (const Buffer& b : plan_memory(graph).buffers)
    text += b.value->name() + " " + std::to_string(b.first) + "-" + std::to_string(b.last) + ", ";
  // g is read until the pack is done; a and end are written while other is still read
  CHECK(text == "x 0-2, g 1-4, other 2-6, packed 3-7, a 5-7, end 5-7, ");
}

TEST_CASE("memory plan: random graphs never overlap; a broken plan is found") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const ir::Graph graph = testing::random_program(seed);
    MemoryPlan plan = plan_memory(graph);
    CAPTURE(seed);
    CHECK(check_memory_plan(plan) == "");
    CHECK(plan.arena_bytes >= plan.live_bytes);
    // Any two buffers that are alive together, put to one address, are found.
    for (size_t i = 0; i < plan.buffers.size(); ++i)
      for (size_t k = i + 1; k < plan.buffers.size(); ++k) {
        const Buffer &a = plan.buffers[i], &b = plan.buffers[k];
        if (a.first > b.last || b.first > a.last || a.region != b.region) continue;
        MemoryPlan broken = plan;
        broken.buffers[k].offset = a.offset;
        CHECK_FALSE(check_memory_plan(broken).empty());
      }
    if (plan.buffers.empty()) continue;
    MemoryPlan small = plan;
    for (int64_t& bytes : small.region_bytes) --bytes;
    CHECK(check_memory_plan(small).find("bytes of region") != std::string::npos);
    MemoryPlan misaligned = plan;
    misaligned.buffers[0].offset += 4;
    CHECK(check_memory_plan(misaligned).find("multiple of") != std::string::npos);
  }
}

}  // namespace
}  // namespace sfsdp::plan
