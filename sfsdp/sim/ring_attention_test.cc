// SPDX-License-Identifier: BSD-3-Clause
// Ring attention in simulated time and memory, against keys and values that are gathered first.
#include <doctest/doctest.h>

#include <string>

#include "sfsdp/cost/machine.h"
#include "sfsdp/cost/target.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/parallel/partition.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/plan/step_plan.h"
#include "sfsdp/sim/simulate.h"
#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::sim::ring_attention_test {
namespace {

constexpr int64_t kRanks = 8;

// Attention of one layer over 131,072 tokens, forward and backward, whose gradients are squeezed to numbers.
const std::string kAttention = testing::dedent(R"(
  graph mesh [] view global
    %wq = param name=wq : bf16[4096, 128]
    %wk = param name=wk : bf16[1024, 128]
    %wv = param name=wv : bf16[1024, 128]
    %x = input name=x : bf16[1, 131072, 128]
  fwd:
    %q.w = linear %x, %wq : bf16[1, 131072, 4096]
    %q.v = aten.view %q.w size=[1, 131072, 32, 128] : bf16[1, 131072, 32, 128]
    %q = aten.transpose.int %q.v dim0=1 dim1=2 : bf16[1, 32, 131072, 128]{536870912, 128, 4096, 1}
    %k.w = linear %x, %wk : bf16[1, 131072, 1024]
    %k.v = aten.view %k.w size=[1, 131072, 8, 128] : bf16[1, 131072, 8, 128]
    %k = aten.transpose.int %k.v dim0=1 dim1=2 : bf16[1, 8, 131072, 128]{134217728, 128, 1024, 1}
    %v.w = linear %x, %wv : bf16[1, 131072, 1024]
    %v.v = aten.view %v.w size=[1, 131072, 8, 128] : bf16[1, 131072, 8, 128]
    %v = aten.transpose.int %v.v dim0=1 dim1=2 : bf16[1, 8, 131072, 128]{134217728, 128, 1024, 1}
    %o, %l = sdpa %q, %k, %v is_causal=true : bf16[1, 32, 131072, 128]{536870912, 128, 4096, 1}, f32[1, 32, 131072]
  bwd:
    %g = aten.neg %o : bf16[1, 32, 131072, 128]{536870912, 128, 4096, 1}
    %dq, %dk, %dv = sdpa_backward %g, %q, %k, %v, %o, %l is_causal=true bwd_of=%o : bf16[1, 32, 131072, 128]{536870912, 128, 4096, 1}, bf16[1, 8, 131072, 128]{134217728, 128, 1024, 1}, bf16[1, 8, 131072, 128]{134217728, 128, 1024, 1}
    %rk = aten.relu %dk : bf16[1, 8, 131072, 128]{134217728, 128, 1024, 1}
    %rv = aten.relu %dv : bf16[1, 8, 131072, 128]{134217728, 128, 1024, 1}
    %sq = aten.sum %dq : bf16[]
    %sk = aten.sum %rk : bf16[]
    %sv = aten.sum %rv : bf16[]
    return %sq, %sk, %sv
)");

ir::Graph by(RotateMethod method, bool balanced = true) {
  ir::Graph graph = ir::parse_or_throw(kAttention);
  graph.mesh = {{"cp", kRanks}};
  graph.view = ir::Graph::View::Local;
  const ContextParallelOptions options = {.load_balance = balanced, .rotate_method = method};
  parallel::partition(graph, {"cp", kRanks}, {}, {}, &options);
  passes::run_passes(graph, passes::parse_passes("merge_duplicates, split_collectives, cover_permutes, fuse"));
  return graph;
}

// In a node of fast links what is merged costs more than what is no longer waited for; in one of slow links less.
TEST_CASE("simulation: what goes round a ring of attention that takes longer than it travels is hardly waited for") {
  const ir::Graph gathered = by(RotateMethod::AllGather), ring = by(RotateMethod::Ring);
  for (const char* name : {"dgx_h100", "l40s"}) {
    CAPTURE(name);
    const cost::Machine machine = cost::load_machine(name);
    const Simulation all = simulate(gathered, machine), round = simulate(ring, machine);
    const double of_gathers = all.exposed_seconds.at("all_gather") + all.exposed_seconds.at("reduce_scatter");
    CHECK(round.exposed_seconds.at("permute") < 0.1 * round.communication_seconds.at("permute"));
    CHECK(round.exposed_seconds.at("permute") < 0.1 * of_gathers);
    CHECK(round.flops == doctest::Approx(all.flops));
    if (name == std::string("l40s")) CHECK(round.step_seconds < all.step_seconds);
  }
}

// A rank has its own keys and values, and their gradients, and those that come and go, in place of all eight ranks'.
TEST_CASE("plan: a ring never has the keys and values of all ranks, nor their gradients") {
  const auto planned = [](RotateMethod method) {
    return plan::make_plan(by(method), {.target = cost::target_of(cost::load_machine("dgx_h100"))});
  };
  const plan::StepPlan all = planned(RotateMethod::AllGather), ring = planned(RotateMethod::Ring);
  const int64_t of_rank = 2 * int64_t{2} * 8 * 131072 / kRanks * 128;  // keys and values
  CHECK(all.memory.live_bytes - ring.memory.live_bytes > 3 * of_rank);
  CHECK(all.memory.peak() - ring.memory.peak() > 3 * of_rank);
  for (const plan::Buffer& buffer : ring.memory.buffers)
    if (buffer.value->name().starts_with("k.from") || buffer.value->name().starts_with("v.from"))
      CHECK(buffer.bytes == of_rank / 2);
}

}  // namespace
}  // namespace sfsdp::sim::ring_attention_test
