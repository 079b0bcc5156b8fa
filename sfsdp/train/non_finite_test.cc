// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/non_finite.h"

#include <doctest/doctest.h>

#include <map>
#include <optional>
#include <span>
#include <string>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/parser.h"

namespace sfsdp::train::non_finite_test {
namespace {

constexpr const char* kStep = R"(graph mesh [dp_shard=2] view local
  %x = input name=x : f32[4] at blocks.1
  %mask = constant index=0 : f32[4]
fwd:
  %garbage = aten.empty_like %x : f32[4] at blocks.1
  %held = aten.add.Tensor %garbage, %x : f32[4] at blocks.1
  %masked = aten.add.Tensor %x, %mask : f32[4] at blocks.1
  %p = aten._softmax %masked dim=0 half_to_float=false : f32[4] at blocks.1
  %nobody = aten.log %p : f32[4] at blocks.1
  %log = aten.log %x : f32[4] at blocks.2.head
  %y = aten.mul.Tensor %log, %p : f32[4] at blocks.2.head
loss:
  %loss = aten.sum %y : f32[]
bwd:
  %grad = aten.div.Tensor %p, %x bwd_of=%log : f32[4] at blocks.2.head
  return %loss, %grad, %held
)";

using Counts = std::map<std::string, ValueCounts>;

// Lets a watch see all ops once; values that are not named are finite.
std::optional<NonFiniteWatch::Fault> fault_of(const ir::Graph& graph, const Counts& counts) {
  NonFiniteWatch watch(graph);
  for (const auto& op : graph.ops()) {
    const auto found = counts.find(op->result()->name());
    const std::optional<ValueCounts> result = found == counts.end() ? ValueCounts{.numel = 4} : found->second;
    watch.see(*op, {&result, 1});
  }
  return watch.fault();
}

const ValueCounts kNan = {.numel = 4, .nan = 1, .first = 2}, kInf = {.numel = 4, .plus_inf = 1, .first = 0},
                  kMinusInf = {.numel = 4, .minus_inf = 2, .first = 1, .min = -1, .max = 3, .mean_abs = 2};

TEST_CASE("the first op whose result is not finite is the fault; what reads it is not") {
  const ir::Graph graph = ir::parse_or_throw(kStep);
  CHECK_FALSE(fault_of(graph, {}));
  const auto is = [&](const Counts& counts, const char* name, int64_t number) {
    const auto fault = fault_of(graph, counts);
    REQUIRE(fault);
    CHECK(fault->value->name() == name);
    CHECK(fault->number == number);
  };
  is({{"log", kMinusInf}, {"y", kNan}, {"loss", kNan}}, "log", 7);
  is({{"grad", kInf}}, "grad", 10);
  is({{"x", kNan}, {"log", kNan}}, "x", 0);
}

TEST_CASE("infinities of a mask, results that nobody reads and memory that nobody wrote are no faults; a nan is") {
  const ir::Graph graph = ir::parse_or_throw(kStep);
  CHECK_FALSE(fault_of(graph, {{"mask", kMinusInf}, {"masked", kMinusInf}, {"nobody", kNan}, {"garbage", kNan}}));
  CHECK(fault_of(graph, {{"mask", kMinusInf}, {"masked", kInf}})->value->name() == "masked");  // of the other sign
  CHECK(fault_of(graph, {{"masked", kMinusInf}})->value->name() == "masked");                  // not asked for
  CHECK(fault_of(graph, {{"mask", kMinusInf}, {"masked", kMinusInf}, {"p", kNan}})->value->name() == "p");
  CHECK(fault_of(graph, {{"garbage", kNan}, {"held", kNan}})->value->name() == "held");
}

// A query may see none of one rank's keys, and sees one of all.
TEST_CASE("a sum over no keys is no fault where attention is to one rank's alone; a nan is") {
  for (const bool of_one_rank : {true, false}) {
    const ir::Graph graph =
        ir::parse_or_throw(concat("graph mesh [cp=2] view local\n  %q = input name=q : f32[1, 2, 4, 4]\nfwd:\n",
                                  "  %o, %l = sdpa %q, %q, %q is_causal=true", of_one_rank ? " axis=cp shift=1" : "",
                                  " : f32[1, 2, 4, 4], f32[1, 2, 4]\n  return %o, %l\n"));
    const auto fault = [&](const ValueCounts& sums) {
      NonFiniteWatch watch(graph);
      const std::optional<ValueCounts> results[] = {ValueCounts{.numel = 4}, sums};
      for (const auto& op : graph.ops()) watch.see(*op, std::span(results).first(op->results().size()));
      return watch.fault().has_value();
    };
    CHECK(fault(kMinusInf) != of_one_rank);
    CHECK(fault(kInf));
    CHECK(fault(kNan));
  }
}

// A product leaves what stands after a rank's rows as it was; what is sent back is of rows alone.
TEST_CASE("a nan beside the rows of a rank's experts is no fault; one among what they give is") {
  const ir::Graph graph = ir::parse_or_throw(R"(graph mesh [ep=2] view local
  %w = param box=ep name=w : f32[2/ep, 4, 4]
  %t = input name=t : f32[2/ep, 4]
  %order = input name=order : i64[4]
  %ends = input name=ends : i32[4]
fwd:
  %own = own_ends %ends axis=ep : i32[2/ep]
  %rows = all_to_all_v %t, %order, %ends axis=ep rows=4 to=rows : f32[4, 4] rows0(ep)
  %y = aten._grouped_mm %rows, %w, %own, none : f32[4, 4] rows0(ep)
  %back = all_to_all_v %y, %order, %ends axis=ep rows=4 to=parts : f32[2/ep, 4]
  return %back
)");
  CHECK_FALSE(fault_of(graph, {{"y", kNan}}));
  CHECK(fault_of(graph, {{"rows", kNan}})->value->name() == "rows");
  CHECK(fault_of(graph, {{"y", kNan}, {"back", kNan}})->value->name() == "back");
}

TEST_CASE("a fault is told with op, module, section, micro-batch, values and a cure") {
  const ir::Graph graph = ir::parse_or_throw(kStep);
  const auto fault = fault_of(graph, {{"log", kMinusInf}});
  const ValueCounts zeros = {.numel = 4, .min = 0, .max = 3, .mean_abs = 1.5};
  CHECK(describe(*fault, {{graph.find_value("x"), zeros}}, 3) ==
        "aten.log at blocks.2.head, in section fwd of micro-batch 3:\n"
        "    %log = aten.log %x : f32[4] at blocks.2.head\n"
        "    %log: 2 of 4 elements are not finite (2 -inf), the first is element 1; the others are from -1 to 3, 2 on"
        " average without sign\n"
        "    %x: 4 finite elements from 0 to 3, 1.5 on average without sign\n"
        "  the logarithm of 0 or less: clamp what it is taken of, or use log_softmax");
  const auto backward = fault_of(graph, {{"grad", kInf}});
  CHECK(describe(*backward, {}, 0)
            .starts_with("aten.div.Tensor at blocks.2.head, in section bwd of micro-batch 0,"
                         " backward of aten.log:\n"));
}

TEST_CASE("the cure is by what the op computes and reads") {
  const auto cure = [](const std::string& line, const ValueCounts& operand) {
    const ir::Graph graph =
        ir::parse_or_throw("graph mesh [a=2] view local\n  %x = input name=x : f32[4]\nfwd:\n  %y = " + line + "\n");
    return cure_of(*graph.find_value("y")->producer(), {{graph.find_value("x"), operand}});
  };
  const ValueCounts zero = {.numel = 4, .min = -1, .max = 1}, large = {.numel = 4, .min = 1e30, .max = 3e38};
  CHECK(cure("aten.reciprocal %x : f32[4]", zero).starts_with("a division by 0"));
  CHECK(cure("aten.reciprocal %x : f32[4]", large).starts_with("its operands are too large"));
  CHECK(cure("aten.rsqrt %x : f32[4]", zero).starts_with("a root or power of 0 or less"));
  CHECK(cure("aten.exp %x : f32[4]", large).starts_with("an exponential of a large number"));
  CHECK(cure("aten._softmax %x dim=0 half_to_float=false : f32[4]", kMinusInf).starts_with("infinities of a mask"));
  CHECK(cure("all_reduce %x axis=a : f32[4]", large).starts_with("a sum of finite parts"));
  CHECK(cure("cast %x : f16[4]", large).starts_with("float16 ends at 65504"));
  CHECK(cure("param name=w : f32[4]", {}).starts_with("it was not finite before this step"));
  CHECK(cure("input name=z : f32[4]", {}).starts_with("the batch holds it"));
}

}  // namespace
}  // namespace sfsdp::train::non_finite_test
