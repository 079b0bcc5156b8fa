// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/bucket/copy_buckets.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/passes/pipeline.h"
#include "sfsdp/passes/registry.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/sharded_step.h"

namespace sfsdp::passes::copy_buckets_test {
namespace {

using testing::Agreement, testing::Param, testing::ShardedStep, testing::sharded_step_text;

const std::vector<Param> kParams = {{"emb.w", 5, 3},        {"layers.0.a.w", 4, 4}, {"layers.0.b.w", 3, 2},
                                    {"layers.1.a.w", 4, 4}, {"layers.1.b.w", 1, 7}, {"norm.w", 6, 1},
                                    {"out.w", 5, 3}};

TEST_CASE("copy_buckets: shards are packed, gathered once, and copied out where each is read") {
  testing::expect_pass("copy_buckets", R"(
    graph mesh [dp_shard=2] view local
      %a = param name=a rows=3 unit=u : f32[2/dp_shard~, 2] at a
      %b = param name=b rows=2 unit=u : f32[1/dp_shard] at b
    fwd:
      %a.cast = cast %a : bf16[2/dp_shard~, 2] at a
      %a.full = all_gather %a.cast axis=dp_shard dim=0 : bf16[4, 2] at a
      %a.unpad = narrow %a.full dim=0 length=3 start=0 : bf16[3, 2] at a
      %x = aten.relu %a.unpad : bf16[3, 2] at a
      %b.cast = cast %b : bf16[1/dp_shard] at b
      %b.full = all_gather %b.cast axis=dp_shard dim=0 : bf16[2] at b
      %y = aten.relu %b.full : bf16[2] at b
      return %x, %y
  )",
                       R"(
    graph mesh [dp_shard=2] view local
      %a = param name=a rows=3 unit=u : f32[2/dp_shard~, 2] at a
      %b = param name=b rows=2 unit=u : f32[1/dp_shard] at b
    fwd:
      %a.cast = cast %a : bf16[2/dp_shard~, 2] at a
      %b.cast = cast %b : bf16[1/dp_shard] at b
      %u.full.packed = pack [%a.cast, %b.cast] offsets=[0, 8] : bf16[16] at u
      %u.full = all_gather %u.full.packed axis=dp_shard dim=0 : bf16[32] at u
      %a.full = unpack %u.full offset=0 ranks=2 : bf16[4, 2] at a
      %a.unpad = narrow %a.full dim=0 length=3 start=0 : bf16[3, 2] at a
      %x = aten.relu %a.unpad : bf16[3, 2] at a
      %b.full = unpack %u.full offset=8 ranks=2 : bf16[2] at b
      %y = aten.relu %b.full : bf16[2] at b
      return %x, %y
  )");
}

TEST_CASE("copy_buckets: gradients are packed by rank, reduced once after the last, and each shard is a view") {
  testing::expect_pass("copy_buckets", R"(
    graph mesh [dp_shard=2] view local
      %a = param name=a unit=u : f32[2/dp_shard, 2] at a
      %b = param name=b unit=u : f32[1/dp_shard] at b
      %da = input name=da : f32[4, 2] own(dp_shard)
      %db = input name=db : f32[2] own(dp_shard)
    bwd:
      %b.rs = reduce_scatter %db axis=dp_shard dim=0 : f32[1] at b
      %b.acc = accumulate %b.rs : f32[1] at b
      %a.rs = reduce_scatter %da axis=dp_shard dim=0 : f32[2, 2] at a
      %a.acc = accumulate %a.rs : f32[2, 2] at a
    clip:
      %a.grad = gradient %a.acc param=a replicated=false : f32[2, 2] at a
      %b.grad = gradient %b.acc param=b replicated=false : f32[1] at b
      %sum = sum_squares [%a.grad, %b.grad] axis=dp_shard replicated=[false, false] : f64[2]
      %total = all_reduce %sum axis=dp_shard : f64[2]
      return %total
  )",
                       R"(
    graph mesh [dp_shard=2] view local
      %a = param name=a unit=u : f32[2/dp_shard, 2] at a
      %b = param name=b unit=u : f32[1/dp_shard] at b
      %da = input name=da : f32[4, 2] own(dp_shard)
      %db = input name=db : f32[2] own(dp_shard)
    bwd:
      %u.grad.packed = pack [%db, %da] offsets=[0, 4] ranks=2 : f32[16] at u
      %u.grad = reduce_scatter %u.grad.packed axis=dp_shard dim=0 : f32[8] at u
      %b.rs = view %u.grad offset=0 : f32[1] at b
      %a.rs = view %u.grad offset=4 : f32[2, 2] at a
      %b.acc = accumulate %b.rs : f32[1] at b
      %a.acc = accumulate %a.rs : f32[2, 2] at a
    clip:
      %a.grad = gradient %a.acc param=a replicated=false : f32[2, 2] at a
      %b.grad = gradient %b.acc param=b replicated=false : f32[1] at b
      %sum = sum_squares [%a.grad, %b.grad] axis=dp_shard replicated=[false, false] : f64[2]
      %total = all_reduce %sum axis=dp_shard : f64[2]
      return %total
  )");
}

TEST_CASE("copy_buckets: a step computes the same bits, reordered or not, on every kind of mesh") {
  for (const int64_t world : {2, 3, 4})
    for (const int64_t replicas : {1, 2})
      for (const bool bf16 : {false, true})
        for (const bool once : {false, true})
          for (const std::string rest :
               {"", ", split_collectives, prefetch_gathers, sink_waits, early_all_reduces",
                ", split_collectives, prefetch_gathers depth=2 forward=before backward=after, sink_waits depth=2 "
                "next=after, early_all_reduces"}) {
            CAPTURE(world);
            CAPTURE(replicas);
            CAPTURE(bf16);
            CAPTURE(once);
            CAPTURE(rest);
            const ir::Graph before = ir::parse_or_throw(
                sharded_step_text(world, kParams, {.bf16 = bf16, .replicas = replicas, .reduce_once = once}));
            ir::Graph after = before.clone();
            const auto reports = run_passes(after, parse_passes("wrap, copy_buckets" + rest));
            CHECK(reports[1].changed);
            CHECK(testing::check_same_meaning(before, after, Agreement::Bitwise).empty());
          }
}

TEST_CASE("copy_buckets: one collective per unit, region and kind; gathers start under the unit before") {
  const std::vector<Param> params = {
      {"layers.0.a", 4, 4}, {"layers.0.b", 3, 2}, {"layers.1.a", 4, 4}, {"layers.1.b", 2, 2}};
  ir::Graph graph = ir::parse_or_throw(sharded_step_text(2, params, {.replicas = 2}));
  const auto reports = run_passes(
      graph, parse_passes("wrap, copy_buckets, split_collectives, prefetch_gathers, sink_waits, early_all_reduces"));
  CHECK(reports[1].metrics.get("merged") == 4 * 4);  // gathers in two regions, reductions over shards and replicas
  CHECK(reports[1].metrics.get("buckets") == 4 * 2);
  CHECK(reports[1].metrics.get("bytes_copied") > 0);
  std::vector<std::string> forward;
  for (const auto& op : graph.ops())
    if (op->section == ir::Section::Fwd && (op->is("all_gather.start") || ir::is_wait(*op)))
      forward.push_back(op->opcode);
  CHECK(forward == std::vector<std::string>{"all_gather.start", "all_gather.start", "wait", "wait"});
  for (const auto& op : graph.ops()) {
    if (op->is("all_reduce.start") && op->operands[0]->producer()->is("pack")) {  // under backward, with its pack
      CHECK(op->section == ir::Section::Bwd);
      CHECK(op->operands[0]->producer()->section == ir::Section::Bwd);
    }
  }
}

}  // namespace
}  // namespace sfsdp::passes::copy_buckets_test
