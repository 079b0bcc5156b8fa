// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/sim/report/op_classes.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "sfsdp/ir/parser.h"

namespace sfsdp::sim::op_classes_test {
namespace {

// 1 flop/s of products, 1 byte/s of memory and links: a product of 4 × 4 × 4 takes 128 s, what reads and writes 64 bytes
// each 128 s, a gather of 64 bytes on two ranks 32 s.
cost::Machine unit_machine() {
  cost::Machine m;
  m.peak_bf16 = m.peak_f32 = 1;
  m.matmul_efficiency = m.attention_efficiency = m.memory_efficiency = 1;
  m.memory_bandwidth = 1;
  m.devices_per_node = 8;
  m.node = {1, 0, 0};
  m.network = {1, 0, 0};
  return m;
}

TEST_CASE("op_classes: kernels by what their ops are, collectives by what is waited for; all of it is the step") {
  const ir::Graph graph = ir::parse_or_throw(R"(
    graph mesh [dp_shard=2] view local
      %a = param name=a : f32[2/dp_shard, 4]
      %x = input name=x : f32[4, 4] own(dp_shard)
    fwd:
      %as = all_gather.start %a axis=dp_shard dim=0 : async f32[4, 4]
      %n = aten.neg %x kernel=0 : f32[4, 4]
      %aw = wait %as : f32[4, 4]
      %bs = all_gather.start %a axis=dp_shard dim=0 : async f32[4, 4]
      %bw = wait %bs : f32[4, 4]
      %y = aten.mm %n, %aw kernel=1 : f32[4, 4]
      %z = aten.mm %y, %bw kernel=2 : f32[4, 4]
      %p = pack %z kernel=3 : f32[16]
      return %p
  )");
  const Simulation simulation = simulate(graph, unit_machine());
  const auto shares = op_classes(simulation);
  const auto find = [&](const char* name) { return *std::ranges::find(shares, name, &ClassShare::name); };
  CHECK(find("product").count == 2);
  CHECK(find("product").flops == 2 * 128);
  CHECK(find("product").bytes == 2 * 3 * 64);
  CHECK(find("pointwise").seconds == doctest::Approx(128));
  CHECK(find("copy").bytes == 2 * 64);
  CHECK(find("all_gather").count == 2);
  CHECK(find("all_gather").bytes == 2 * 64);
  CHECK(find("all_gather").seconds == doctest::Approx(32));  // the first is hidden by the negation
  CHECK(find("idle").seconds == doctest::Approx(0));
  CHECK(std::ranges::find(shares, "optimizer", &ClassShare::name) == shares.end());
  double sum = 0;
  for (const ClassShare& share : shares) sum += share.seconds;
  CHECK(sum == doctest::Approx(simulation.step_seconds));
}

TEST_CASE("class_of_kernel: a product or an update gives its kernel the class, whatever stands before it") {
  const ir::Graph graph = ir::parse_or_throw(R"(
    graph mesh [] view local
      %x = input name=x : f32[4, 4]
    fwd:
      %n = aten.neg %x : f32[4, 4]
      %y = aten.mm %n, %x : f32[4, 4]
      %s = aten.sum.dim_IntList %y dim=[1] : f32[4]
      return %s
  )");
  const ir::Op *neg = graph.ops()[1].get(), *mm = graph.ops()[2].get(), *sum = graph.ops()[3].get();
  const auto of = [](const std::vector<const ir::Op*>& ops) { return class_of_kernel(ops); };
  CHECK(of({neg}) == "pointwise");
  CHECK(of({neg, sum}) == "row");
  CHECK(of({neg, mm, sum}) == "product");
}

}  // namespace
}  // namespace sfsdp::sim::op_classes_test
