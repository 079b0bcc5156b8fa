// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/op_cuts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/parser.h"

namespace sfsdp::parallel::op_cuts_test {
namespace {

using ir::Op, ir::Placement;

bool are_same(const std::vector<OpCut>& a, const std::vector<OpCut>& b) {
  return std::ranges::equal(
      a, b, [](const OpCut& x, const OpCut& y) { return x.operands == y.operands && x.results == y.results; });
}

// %x and %y are alike; %w adds zeros, which are a summand too; %u and %v differ in an attribute, %s and %t in a size.
TEST_CASE("CutsOfOps: an answer is that of the op alone, and one for all that are alike") {
  const ir::Graph graph = ir::parse_or_throw(R"(
    graph mesh [] view global
      %a = input name=a : f32[4, 4]
      %b = input name=b : f32[4, 4]
      %c = input name=c : f32[8, 4]
    fwd:
      %x = aten.add.Tensor %a, %b : f32[4, 4]
      %y = aten.add.Tensor %b, %x : f32[4, 4]
      %z = aten.new_zeros %a size=[4, 4] : f32[4, 4]
      %w = aten.add.Tensor %a, %z : f32[4, 4]
      %u = aten.sum.dim_IntList %a dim=[0] : f32[4]
      %v = aten.sum.dim_IntList %a dim=[1] : f32[4]
      %s = aten.relu %a : f32[4, 4]
      %t = aten.relu %c : f32[8, 4]
      return %y
  )");
  const Placement whole = Placement::replicate(), sum = Placement::partial(ir::ReduceOp::Sum);
  CutsOfOps known(graph, 4, true);
  for (const Placement& first : {whole, sum, Placement::shard(0), Placement::shard(1)})
    for (const auto& op : graph.ops()) {
      if (ir::is_root(*op)) continue;
      std::vector<Placement> operands(op->operands.size(), whole);
      operands[0] = first;
      CAPTURE(op->result()->name());
      CHECK(are_same(known.of(*op, operands), cuts_of(*op, operands, 4, true)));
    }
  const auto answer = [&](const char* name, const std::vector<Placement>& operands) {
    return &known.of(*graph.find_value(name)->producer(), operands);
  };
  CHECK(answer("x", {sum, whole}) == answer("y", {sum, whole}));
  CHECK(answer("x", {sum, whole}) != answer("x", {whole, whole}));
  CHECK_FALSE(are_same(*answer("x", {sum, whole}), *answer("w", {sum, whole})));
  CHECK_FALSE(are_same(*answer("u", {Placement::shard(0)}), *answer("v", {Placement::shard(0)})));
  CHECK(answer("s", {whole}) != answer("t", {whole}));
}

TEST_CASE("cuts_of: what one row at another place is written to is not cut there, as if the row were broadcast") {
  const ir::Graph graph = ir::parse_or_throw(R"(
    graph mesh [] view global
      %x = input name=x : f32[4, 6]
      %row = input name=row : f32[1, 6]
    fwd:
      %y = aten.slice_scatter %x, %row dim=0 end=2 start=1 : f32[4, 6]
      return %y
  )");
  const Op& op = *graph.find_value("y")->producer();
  const Placement whole = Placement::replicate();
  const auto whole_alone = cuts_of(op, {Placement::shard(0), whole}, 2);
  REQUIRE(whole_alone.size() == 1);
  CHECK(whole_alone[0].operands[0] == whole);
  const auto columns = cuts_of(op, {Placement::shard(1), whole}, 2);
  REQUIRE(columns.size() == 2);
  CHECK(columns[0].operands[1] == Placement::shard(1));
}

TEST_CASE("cuts_of: one index for a dimension of many is not broadcast, neither where it is written nor beside it") {
  const ir::Graph graph = ir::parse_or_throw(R"(
    graph mesh [] view global
      %x = input name=x : f32[4, 6]
      %row = input name=row : f32[1, 6]
      %column = input name=column : f32[4, 1]
      %i = input name=i : i64[1]
      %r = input name=r : i64[1, 6]
      %c = input name=c : i64[4, 1]
      %all = input name=all : i64[4, 6]
    fwd:
      %a = aten.index_add %x, %i, %row dim=0 : f32[4, 6]
      %b = aten.scatter_add %x, %r, %row dim=0 : f32[4, 6]
      %d = aten.scatter.src %x, %r, %row dim=1 : f32[4, 6]
      %e = aten.scatter.value %x, %c dim=0 value=2 : f32[4, 6]
      %f = aten.scatter_reduce.two %x, %c, %column dim=1 reduce="sum" : f32[4, 6]
      %g = aten.scatter_add %x, %all, %x dim=0 : f32[4, 6]
      return %a, %b, %d, %e, %f, %g
  )");
  const Placement whole = Placement::replicate();
  const auto is_cut_in = [&](const char* name, int64_t dim) {
    const Op& op = *graph.find_value(name)->producer();
    std::vector<Placement> operands(op.operands.size(), whole);
    operands[0] = Placement::shard(dim);
    const auto ways = cuts_of(op, operands, 2);
    return std::ranges::any_of(ways, [&](const OpCut& way) { return way.operands[0] == Placement::shard(dim); });
  };
  const auto dims_of = [&](const char* name) {
    return concat(is_cut_in(name, 0) ? "0" : "", is_cut_in(name, 1) ? "1" : "");
  };
  CHECK(dims_of("a") == "1");
  CHECK(dims_of("b") == "1");
  CHECK(dims_of("d") == "");
  CHECK(dims_of("e") == "");
  CHECK(dims_of("f") == "0");
  CHECK(dims_of("g") == "1");
}

}  // namespace
}  // namespace sfsdp::parallel::op_cuts_test
