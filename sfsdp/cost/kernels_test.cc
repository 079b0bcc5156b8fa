// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/kernels.h"

#include <doctest/doctest.h>

#include <string>

#include "sfsdp/ir/parser.h"

namespace sfsdp::cost::kernels_test {
namespace {

std::string inside(const ir::Graph& graph) {
  const auto values = values_inside(graph, kernels_of(graph));
  std::string names;
  for (const auto& op : graph.ops())
    for (const auto& result : op->results())
      if (values.contains(result.get())) names += result->name() + " ";
  return names;
}

TEST_CASE("kernels: ops of one number that stand together, else an op each; views and collectives have none") {
  const ir::Graph graph = ir::parse_or_throw(R"(
graph mesh [dp_shard=2] view local
  %x = input name=x : f32[4] own(dp_shard)
fwd:
  %a = aten.neg %x kernel=0 : f32[4]
  %v = aten.view %a size=[2,2] : f32[2, 2]
  %b = aten.neg %v kernel=0 : f32[2, 2]
  %c = aten.neg %b kernel=1 : f32[2, 2]
  %r = all_reduce %c axis=dp_shard : f32[2, 2]
  %d = aten.neg %r : f32[2, 2]
  %e = aten.neg %d : f32[2, 2]
  return %e
)");
  const Kernels kernels = kernels_of(graph);
  CHECK(kernels.of == std::vector<int>{-1, 0, -1, 0, 1, -1, 2, 3});
  REQUIRE(kernels.ops.size() == 4);
  CHECK(kernels.ops[0].size() == 2);
}

TEST_CASE("kernels: what one alone makes and reads stays inside, through views too") {
  CHECK(inside(ir::parse_or_throw(R"(
graph mesh [dp_shard=1] view local
  %x = input name=x : f32[4, 4]
fwd:
  %a = aten.neg %x kernel=0 : f32[4, 4]
  %v = aten.view %a size=[16] : f32[16]
  %b = aten.exp %v kernel=0 : f32[16]
  %c = aten.neg %b kernel=0 : f32[16]
  %d = aten.neg %c kernel=1 : f32[16]
  %e = aten.neg %d kernel=1 : f32[16]
  %f = aten.neg %b kernel=2 : f32[16]
  %g = aten.neg %f kernel=2 : f32[16]
  return %e, %f, %g
)")) == "a d ");  // b and c are read by others, e, f and g are results
  CHECK(inside(ir::parse_or_throw(R"(
graph mesh [dp_shard=1] view local
  %x = input name=x : f32[4]
fwd:
  %a = aten.neg %x kernel=0 : f32[4]
  %b = aten.exp %a kernel=0 : f32[4]
  %w = aten.view %b size=[2,2] : f32[2, 2]
  return %w
)")) == "a ");
  CHECK(inside(ir::parse_or_throw(R"(
graph mesh [dp_shard=1] view local
  %x = input name=x : f32[4]
fwd:
  %a = aten.neg %x : f32[4]
  %b = aten.exp %a : f32[4]
  return %b
)"))
            .empty());
}

TEST_CASE("kernels: a sum over micro-batches is read by the next one, though its own kernel alone reads it") {
  ir::Graph graph = ir::parse_or_throw(R"(
graph mesh [dp_shard=1] view local
  %x = input name=x : f32[4]
fwd:
  %a = aten.neg %x kernel=0 : f32[4]
  %s = accumulate %a kernel=0 : f32[4]
  %b = aten.exp %s kernel=0 : f32[4]
  return %b
)");
  CHECK(inside(graph) == "a s ");
  graph.micro_batches = 3;
  CHECK(inside(graph) == "a ");
}

}  // namespace
}  // namespace sfsdp::cost::kernels_test
