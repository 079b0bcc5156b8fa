// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/bucket/pack_all_reduces.h"

#include <doctest/doctest.h>

#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::passes::pack_all_reduces_test {
namespace {

TEST_CASE("pack_all_reduces: sums over tp of small gradients become one, each gradient a view; others stay") {
  testing::expect_pass("pack_all_reduces", R"(
    graph mesh [dp_shard=2, tp=2] view local
      %a = param members=[a.w] name=a.flat numels=[6] offsets=[0] size=6 unit=a : f32[3/dp_shard]
      %b = param members=[b.w] name=b.flat numels=[4] offsets=[0] size=4 unit=b : f32[2/dp_shard]
      %c = param members=[c.w] name=c.flat numels=[4] offsets=[0] size=4 unit=c : f32[2/dp_shard]
      %da = input name=da : f32[6] own(dp_shard)
      %db = input name=db : f32[4] own(dp_shard)
    bwd:
      %da.part = as_summand %da axis=tp : f32[6] sum(tp)
      %db.part = as_summand %db axis=tp : f32[4] sum(tp)
      %b.rs = reduce_scatter %db.part axis=dp_shard dim=0 : f32[2] sum(tp)
      %c.rs = reduce_scatter %db axis=dp_shard dim=0 : f32[2]
      %a.rs = reduce_scatter %da.part axis=dp_shard dim=0 : f32[3] sum(tp)
    clip:
      %a.ar = all_reduce %a.rs axis=tp : f32[3] at a
      %a.grad = gradient %a.ar param=a.flat : f32[3] at a
      %b.ar = all_reduce %b.rs axis=tp : f32[2] at b
      %b.grad = gradient %b.ar param=b.flat : f32[2] at b
      %c.grad = gradient %c.rs param=c.flat : f32[2] at c
      %sum = sum_squares [%a.grad, %b.grad, %c.grad] axis=[dp_shard, tp] counted_once=[true, true, true] inner=2 replicated=[false, false, false] : f64[3] sum(tp)
      %total = all_reduce %sum axis=[dp_shard, tp] : f64[3]
      return %total
  )",
                       R"(
    graph mesh [dp_shard=2, tp=2] view local
      %a = param members=[a.w] name=a.flat numels=[6] offsets=[0] size=6 unit=a : f32[3/dp_shard]
      %b = param members=[b.w] name=b.flat numels=[4] offsets=[0] size=4 unit=b : f32[2/dp_shard]
      %c = param members=[c.w] name=c.flat numels=[4] offsets=[0] size=4 unit=c : f32[2/dp_shard]
      %da = input name=da : f32[6] own(dp_shard)
      %db = input name=db : f32[4] own(dp_shard)
    bwd:
      %da.part = as_summand %da axis=tp : f32[6] sum(tp)
      %db.part = as_summand %db axis=tp : f32[4] sum(tp)
      %b.rs = reduce_scatter %db.part axis=dp_shard dim=0 : f32[2] sum(tp)
      %c.rs = reduce_scatter %db axis=dp_shard dim=0 : f32[2]
      %a.rs = reduce_scatter %da.part axis=dp_shard dim=0 : f32[3] sum(tp)
    clip:
      %summed_over_tp.packed = pack [%a.rs, %b.rs] offsets=[0, 64] : f32[128] sum(tp)
      %summed_over_tp = all_reduce %summed_over_tp.packed axis=tp : f32[128]
      %a.ar = view %summed_over_tp offset=0 : f32[3] at a
      %a.grad = gradient %a.ar param=a.flat : f32[3] at a
      %b.ar = view %summed_over_tp offset=64 : f32[2] at b
      %b.grad = gradient %b.ar param=b.flat : f32[2] at b
      %c.grad = gradient %c.rs param=c.flat : f32[2] at c
      %sum = sum_squares [%a.grad, %b.grad, %c.grad] axis=[dp_shard, tp] counted_once=[true, true, true] inner=2 replicated=[false, false, false] : f64[3] sum(tp)
      %total = all_reduce %sum axis=[dp_shard, tp] : f64[3]
      return %total
  )");
}

// What is summed of one micro-batch after the other is summed over the ranks once; means are made after it.
TEST_CASE("pack_all_reduces: a sum for each list of axes and dtype, of what all micro-batches have added up") {
  testing::expect_pass("pack_all_reduces", R"(
    graph mesh [dp_replicate=2, tp=2] view local
      %a = param members=[a.w] name=a.flat numels=[4] offsets=[0] size=4 unit=a : f32[4]
      %b = param members=[b.w] name=b.flat numels=[4] offsets=[0] size=4 unit=b : f32[4]
      %c = param members=[c.w] name=c.flat numels=[4] offsets=[0] size=4 unit=c : f32[4]
      %d = param members=[d.w] name=d.flat numels=[4] offsets=[0] size=4 unit=d : f32[4]
      %x = input name=x : f32[4] own(dp_replicate)
    bwd:
      %p = as_summand %x axis=tp : f32[4] sum(tp)
      %a.acc = accumulate %p : f32[4] sum(tp)
      %n = aten.neg %p : f32[4] sum(tp)
      %b.acc = accumulate %n : f32[4] sum(tp)
      %low = cast %p : bf16[4] sum(tp)
      %c.acc = accumulate %low : bf16[4] sum(tp)
      %d.acc = accumulate %x : f32[4]
    clip:
      %a.ar = all_reduce %a.acc axis=[dp_replicate, tp] : f32[4] at a
      %a.mean = mul_scalar %a.ar value=0.5 : f32[4] at a
      %a.grad = gradient %a.mean param=a.flat : f32[4] at a
      %b.ar = all_reduce %b.acc axis=[dp_replicate, tp] : f32[4] at b
      %b.mean = mul_scalar %b.ar value=0.5 : f32[4] at b
      %b.grad = gradient %b.mean param=b.flat : f32[4] at b
      %c.ar = all_reduce %c.acc axis=[dp_replicate, tp] : bf16[4] at c
      %c.stored = cast %c.ar : f32[4] at c
      %c.grad = gradient %c.stored param=c.flat : f32[4] at c
      %d.ar = all_reduce %d.acc axis=dp_replicate : f32[4] at d
      %d.grad = gradient %d.ar param=d.flat : f32[4] at d
      return %a.grad, %b.grad, %c.grad, %d.grad
  )",
                       R"(
    graph mesh [dp_replicate=2, tp=2] view local
      %a = param members=[a.w] name=a.flat numels=[4] offsets=[0] size=4 unit=a : f32[4]
      %b = param members=[b.w] name=b.flat numels=[4] offsets=[0] size=4 unit=b : f32[4]
      %c = param members=[c.w] name=c.flat numels=[4] offsets=[0] size=4 unit=c : f32[4]
      %d = param members=[d.w] name=d.flat numels=[4] offsets=[0] size=4 unit=d : f32[4]
      %x = input name=x : f32[4] own(dp_replicate)
    bwd:
      %p = as_summand %x axis=tp : f32[4] sum(tp)
      %a.acc = accumulate %p : f32[4] sum(tp)
      %n = aten.neg %p : f32[4] sum(tp)
      %b.acc = accumulate %n : f32[4] sum(tp)
      %low = cast %p : bf16[4] sum(tp)
      %c.acc = accumulate %low : bf16[4] sum(tp)
      %d.acc = accumulate %x : f32[4]
    clip:
      %summed_over_dp_replicate_tp.packed = pack [%a.acc, %b.acc] offsets=[0, 64] : f32[128] sum(tp)
      %summed_over_dp_replicate_tp = all_reduce %summed_over_dp_replicate_tp.packed axis=[dp_replicate, tp] : f32[128]
      %a.ar = view %summed_over_dp_replicate_tp offset=0 : f32[4] at a
      %a.mean = mul_scalar %a.ar value=0.5 : f32[4] at a
      %a.grad = gradient %a.mean param=a.flat : f32[4] at a
      %b.ar = view %summed_over_dp_replicate_tp offset=64 : f32[4] at b
      %b.mean = mul_scalar %b.ar value=0.5 : f32[4] at b
      %b.grad = gradient %b.mean param=b.flat : f32[4] at b
      %c.ar = all_reduce %c.acc axis=[dp_replicate, tp] : bf16[4] at c
      %c.stored = cast %c.ar : f32[4] at c
      %c.grad = gradient %c.stored param=c.flat : f32[4] at c
      %d.ar = all_reduce %d.acc axis=dp_replicate : f32[4] at d
      %d.grad = gradient %d.ar param=d.flat : f32[4] at d
      return %a.grad, %b.grad, %c.grad, %d.grad
  )");
}

const char* const kPair = R"(
    graph mesh [tp=2] view local
      %a = param members=[a.w] name=a.flat numels=[4] offsets=[0] size=4 unit=a : f32[4]
      %b = param members=[b.w] name=b.flat numels=[4] offsets=[0] size=4 unit=b : f32[4]
      %x = input name=x : f32[4]
    bwd:
      %p = as_summand %x axis=tp : f32[4] sum(tp)
      %n = aten.neg %p : f32[4] sum(tp)
    clip:
      %a.ar = all_reduce %p axis=tp : f32[4] at a
      %a.grad = gradient %a.ar param=a.flat : f32[4] at a
      %b.ar = all_reduce %n axis=tp : f32[4] at b
      %b.grad = gradient %b.ar param=b.flat : f32[4] at b
      return %a.grad, %b.grad
  )";

TEST_CASE("pack_all_reduces: what is larger than max_bytes is summed by itself") {
  testing::expect_unchanged("pack_all_reduces max_bytes=15", kPair);
  CHECK(testing::check_pass("pack_all_reduces max_bytes=16", kPair, kPair) != "");
}

}  // namespace
}  // namespace sfsdp::passes::pack_all_reduces_test
