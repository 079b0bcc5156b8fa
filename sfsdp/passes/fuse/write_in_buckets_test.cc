// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/fuse/write_in_buckets.h"

#include <doctest/doctest.h>

#include <random>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/cost/op_cost.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/plan/memory_plan.h"
#include "sfsdp/plan/step_plan.h"
#include "sfsdp/plan/verify/hazards.h"
#include "sfsdp/plan/verify/kernels.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/sharded_step.h"
#include "sfsdp/testing/source_dir.h"

namespace sfsdp::passes::write_in_buckets_test {
namespace {

using testing::expect_pass, testing::expect_unchanged;

// %big keeps the peak away from backward.
TEST_CASE(
    "write_in_buckets: a gradient is written in its bucket, by the kernel that makes it and in the bucket's dtype") {
  expect_pass("write_in_buckets", R"(
    graph mesh [dp_shard=2] view local
      %x = input name=x : bf16[8, 8] own(dp_shard)
    fwd:
      %big = full kernel=0 value=1.0 : f32[8192]
      %sum = aten.sum %big kernel=1 : f32[]
    bwd:
      %a = aten.mm %x, %x kernel=2 : bf16[8, 8]
      %b = aten.mm %x, %x kernel=3 : bf16[8, 8]
      %v = aten.view %b size=[64] : bf16[64]
      %a.cast = cast %a kernel=4 : f32[8, 8]
      %b.cast = cast %v kernel=4 : f32[64]
      %p = pack [%a.cast, %b.cast] kernel=4 offsets=[0, 64] : f32[128]
      %g = reduce_scatter %p axis=dp_shard dim=0 : f32[64]
      return %g, %sum
  )",
              R"(
    graph mesh [dp_shard=2] view local
      %x = input name=x : bf16[8, 8] own(dp_shard)
    fwd:
      %big = full kernel=0 value=1.0 : f32[8192]
      %sum = aten.sum %big kernel=1 : f32[]
    bwd:
      %a = aten.mm %x, %x kernel=2 : bf16[8, 8]
      %a.cast = cast %a kernel=2 : f32[8, 8]
      %b = aten.mm %x, %x kernel=3 : bf16[8, 8]
      %v = aten.view %b size=[64] : bf16[64]
      %b.cast = cast %v kernel=3 : f32[64]
      %p = pack [%a.cast, %b.cast] inside=[0, 1] offsets=[0, 64] : f32[128]
      %g = reduce_scatter %p axis=dp_shard dim=0 : f32[64]
      return %g, %sum
  )");
}

TEST_CASE(
    "write_in_buckets: what is read elsewhere, in another order or in part is copied; so are the zeros beside it") {
  expect_pass("write_in_buckets", R"(
    graph mesh [dp_shard=2] view local
      %x = input name=x : f32[8, 8] own(dp_shard)
    fwd:
      %big = full kernel=0 value=1.0 : f32[8192]
      %sum = aten.sum %big kernel=1 : f32[]
    bwd:
      %a = aten.mm %x, %x kernel=2 : f32[8, 8]
      %b = aten.mm %x, %x kernel=3 : f32[8, 8]
      %t = aten.t %b : f32[8, 8]{1, 8}
      %c = aten.mm %x, %a kernel=4 : f32[8, 8]
      %d = aten.mm %x, %x kernel=5 : f32[8, 8]
      %p = pack [%a, %t, %c, %x, %d, %d] kernel=6 offsets=[0, 64, 128, 192, 256, 320] : f32[392]
      %g = reduce_scatter %p axis=dp_shard dim=0 : f32[196]
      return %g, %sum
  )",
              R"(
    graph mesh [dp_shard=2] view local
      %x = input name=x : f32[8, 8] own(dp_shard)
    fwd:
      %big = full kernel=0 value=1.0 : f32[8192]
      %sum = aten.sum %big kernel=1 : f32[]
    bwd:
      %a = aten.mm %x, %x kernel=2 : f32[8, 8]
      %b = aten.mm %x, %x kernel=3 : f32[8, 8]
      %t = aten.t %b : f32[8, 8]{1, 8}
      %c = aten.mm %x, %a kernel=4 : f32[8, 8]
      %d = aten.mm %x, %x kernel=5 : f32[8, 8]
      %p = pack [%a, %t, %c, %x, %d, %d] inside=[2] kernel=6 offsets=[0, 64, 128, 192, 256, 320] : f32[392]
      %g = reduce_scatter %p axis=dp_shard dim=0 : f32[196]
      return %g, %sum
  )");
}

// Matrices of a page, a bucket of two. At most four pages are alive: a, y1, y2 and z; then a, z and the bucket. They would be five
// if a were written in the bucket.
TEST_CASE("write_in_buckets: what is made early is copied where the peak would grow") {
  expect_unchanged("write_in_buckets", R"(
    graph mesh [dp_shard=2] view local
      %x = input name=x : f32[32, 32] own(dp_shard)
    bwd:
      %a = aten.mm %x, %x kernel=0 : f32[32, 32]
      %y1 = aten.mm %x, %x kernel=1 : f32[32, 32]
      %y2 = aten.mm %x, %x kernel=2 : f32[32, 32]
      %z = aten.mm %y1, %y2 kernel=3 : f32[32, 32]
      %p = pack [%a] kernel=4 offsets=[0] : f32[2048]
      %g = reduce_scatter %p axis=dp_shard dim=0 : f32[1024]
      return %g, %z
  )");
}

TEST_CASE("write_in_buckets: of random steps the plan is sound, no slower, and needs no more memory") {
  const cost::Machine machine = cost::load_machine(concat(testing::source_dir(), "/machines/dgx_h100.toml"));
  const auto seconds = [&](const ir::Graph& graph) {
    double sum = 0;
    for (const cost::Kernel& k : cost::price_kernels(graph, machine, cost::Execution::Fused).kernels) sum += k.seconds;
    return sum;
  };
  double saved = 0;
  for (uint64_t seed = 0; seed < 48; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    std::vector<testing::Param> params;
    for (uint64_t i = 0; i < 3 + seed % 10; ++i)
      params.push_back({concat("layers.", i / 3, ".w", i), 1 + static_cast<int64_t>(random() % 512),
                        1 + static_cast<int64_t>(random() % 512)});
    const testing::ShardedStep step = {.bf16 = seed % 3 > 0,
                                       .replicas = seed % 5 == 0 ? 2 : 1,
                                       .reduce_once = seed % 7 == 0,
                                       .tokens = 1 + static_cast<int64_t>(random() % 1024)};
    ir::Graph graph = ir::parse_or_throw(testing::sharded_step_text(8, params, step));
    graph.micro_batches = 1 + static_cast<int64_t>(seed % 3);
    run_passes(graph, parse_passes("wrap, bucket, split_collectives, prefetch_gathers, sink_waits, fuse"));
    ir::Graph written = graph.clone();
    run_passes(written, parse_passes("write_in_buckets"));
    CHECK(seconds(written) <= seconds(graph) * (1 + 1e-9));
    CHECK(plan::plan_memory(written).live_bytes <= plan::plan_memory(graph).live_bytes);
    saved += seconds(graph) - seconds(written);
    const plan::StepPlan plan = plan::make_plan(std::move(written));
    CHECK(plan::check_kernels(plan.graph) == "");
    CHECK(join(plan::check_hazards(plan), "\n") == "");
  }
  CHECK(saved > 0);
}

}  // namespace
}  // namespace sfsdp::passes::write_in_buckets_test
