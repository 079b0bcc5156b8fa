// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/memory_plan.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/testing/random_graph.h"

namespace sfsdp::plan::memory_plan_test {
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
  CHECK(got == "x 512 0-1, s 4096 2-5, a 4096 5-7, b 4096 6-8, ");
  // c is written over b, which nobody else reads; b not over a, which c reads, and a not over s, of which it reads a part
  CHECK(plan.inside == std::vector<Inside>{{graph.find_value("c"), graph.find_value("b"), 0}});
  CHECK(plan.live_bytes == 2 * 4096);
  CHECK(plan.peak_position == 5);
  CHECK(plan.arena_bytes == 512 + 2 * 4096);
  CHECK(plan.region_bytes == std::array<int64_t, kRegions>{0, 3 * 4096, 256 + 512, 0});
  CHECK(plan.buffers[1].offset == 4096);  // above the parameter
  CHECK(plan.workspace_bytes() >= 4096);
  CHECK(plan.program_bytes == 256);  // lr, step, seed, micro_batch
  CHECK(plan.peak() == 4096 + 256 + plan.arena_bytes + plan.workspace_bytes());
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
  // b is written over a, c over the sum; a not over what the next micro-batch reads
  CHECK(lives == "x 0-1, before 1-5, a 2-5, sum 2-7, g 3-4, ");
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
  CHECK(lives == "cast 1-3, s 2-5, a 4-6, ");
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
  // g is read until the pack is done; a is written over other, end while it is still read
  CHECK(text == "x 0-2, g 1-4, other 2-7, packed 3-7, end 5-7, ");
}

TEST_CASE("memory plan: an op that takes over what its own kernel makes, and so has no memory, gets some") {
  const ir::Graph graph = ir::parse_or_throw(R"(
graph mesh [one=1] view local
  %x = input name=x : f32[64]
fwd:
  %a = aten.neg %x kernel=0 : f32[64]
  %s = add_into %a, %x donates=[0] kernel=0 : f32[64]
  %b = aten.neg %s kernel=1 : f32[64]
  return %s, %b
)");
  std::string lives;
  for (const Buffer& b : plan_memory(graph).buffers)
    lives += b.value->name() + " " + std::to_string(b.first) + "-" + std::to_string(b.last) + ", ";
  CHECK(lives == "x 0-2, s 1-4, b 3-4, ");
}

// What may lie in the memory of an operand, by the op that makes it.
TEST_CASE("memory plan: results are written over operands that are read for the last time, at the same places alone") {
  const auto inside = [](const std::string& body) {
    const ir::Graph graph =
        ir::parse_or_throw(concat("graph mesh [one=1] view local\n  %w = param name=w : f32[8, 8]\n"
                                  "  %x = input name=x : f32[8, 8]\nfwd:\n"
                                  "  %a = aten.mm %x, %w kernel=0 : f32[8, 8]\n",
                                  body));
    std::string text;
    for (const Inside& i : plan_memory(graph).inside) text += concat(i.value->name(), ":", i.host->name(), " ");
    return text;
  };
  CHECK(inside("  %b = aten.neg %a kernel=1 : f32[8, 8]\n  return %b\n") == "b:a ");
  CHECK(inside("  %b = aten.neg %a kernel=1 : f32[8, 8]\n  return %a, %b\n") == "");
  // a chain ends in one buffer
  CHECK(inside("  %b = aten.neg %a kernel=1 : f32[8, 8]\n  %c = aten.neg %b kernel=2 : f32[8, 8]\n  return %c\n") ==
        "b:a c:a ");
  // through a view of all of it in the same order; not of another order, nor of a part
  CHECK(inside("  %v = aten.view %a size=[64] : f32[64]\n  %b = aten.neg %v kernel=1 : f32[64]\n  return %b\n") ==
        "b:a ");
  CHECK(inside("  %v = aten.t %a : f32[8, 8]{1, 8}\n  %b = aten.add.Tensor %x, %v alpha=1 kernel=1 : f32[8, 8]\n"
               "  return %b\n") == "");
  // elements of another size
  CHECK(inside("  %b = cast %a kernel=1 : bf16[8, 8]\n  return %b\n") == "");
  CHECK(inside("  %b = cast %a kernel=1 : f64[8, 8]\n  return %b\n") == "");
  // a product reads all of its rows and columns; what follows it element by element does not
  CHECK(inside("  %b = aten.mm %a, %w kernel=1 : f32[8, 8]\n  return %b\n") == "");
  CHECK(
      inside("  %b = aten.mm %x, %w kernel=1 : f32[8, 8]\n  %c = aten.add.Tensor %b, %a alpha=1 kernel=1 : f32[8, 8]\n"
             "  return %c\n") == "c:a ");
  CHECK(
      inside("  %b = aten.mm %a, %w kernel=1 : f32[8, 8]\n  %c = aten.add.Tensor %b, %a alpha=1 kernel=1 : f32[8, 8]\n"
             "  return %c\n") == "");
  // of two results one, also where nobody reads it
  CHECK(inside("  %b = aten.neg %a kernel=1 : f32[8, 8]\n  %c = aten.relu %a kernel=1 : f32[8, 8]\n  return %c\n") ==
        "b:a ");
  // other rows are read while it is written; nothing is known of the last one
  CHECK(inside("  %b = aten.cumprod %a dim=0 kernel=1 : f32[8, 8]\n  return %b\n") == "");
  CHECK(inside("  %b, %s, %t = aten.native_batch_norm_backward %x, %a, none, none, none, none, none eps=1e-05 "
               "output_mask=[true, true, true] train=true kernel=1 : f32[8, 8], f32[8], f32[8]\n  return %b\n") == "");
  CHECK(inside("  %b = aten.special_i0 %a kernel=1 : f32[8, 8]\n  return %b\n") == "");
  // a row is read whole before it is written
  CHECK(inside("  %b = aten.cumprod %a dim=1 kernel=1 : f32[8, 8]\n  return %b\n") == "b:a ");
  CHECK(inside("  %b, %r = rms_norm %a, none dims=1 eps=0.5 kernel=1 : f32[8, 8], f32[8, 1]\n  return %b\n") == "b:a ");
}

TEST_CASE("memory plan: an executor that allocates value by value writes nothing in place") {
  const ir::Graph graph = ir::parse_or_throw(kText);
  const MemoryPlan plan = plan_memory(graph, {.blocking = true});
  CHECK(plan.inside.empty());
  CHECK(plan.buffers.size() == 5);
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
}  // namespace sfsdp::plan::memory_plan_test
