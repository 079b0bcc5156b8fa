// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/machine/plan_machine.h"

#include <doctest/doctest.h>

#include <array>
#include <limits>
#include <span>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/hash.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/passes/registry.h"
#include "sfsdp/plan/verify/hazards.h"
#include "sfsdp/plan/views.h"
#include "sfsdp/testing/interp/kernels.h"
#include "sfsdp/testing/machine/bytes.h"
#include "sfsdp/testing/machine/reference.h"
#include "sfsdp/testing/random_graph.h"

namespace sfsdp::plan::machine::plan_machine_test {
namespace {

// The plan with `result` written over `operand`, as if its kernel were the last to read that and could.
StepPlan written_over(const std::string& graph, const std::string& result, const std::string& operand) {
  StepPlan plan = make_plan(ir::parse_or_throw(graph));
  const ir::Value *value = plan.graph.find_value(result), *host = plan.graph.find_value(operand);
  std::erase_if(plan.memory.inside, [&](const Inside& i) { return i.value == value; });
  std::erase_if(plan.memory.buffers, [&](const Buffer& b) { return b.value == value; });
  plan.memory.inside.push_back({value, host, 0});
  return plan;
}

// A kernel whose text is `ops` reads %a, rows of 8, which another op has made before.
std::string graph_with(const std::string& ops, int last_kernel = 2) {
  return concat(R"(
    graph mesh [dp_shard=1] view local
      %x = input name=x : f32[6, 8]
      %w = input name=w : f32[8]
      %small = input name=small : f32[6, 1]
    fwd:
      %a = aten.mul.Scalar %x other=0.5 kernel=0 : f32[6, 8]
)",
                ops, R"(
      %end = aten.neg %y kernel=)",
                last_kernel, R"( : f32[6, 8]
      return %end
  )");
}

TEST_CASE("plan machine: integers that a double does not hold are refused, not rounded") {
  std::array<std::byte, 8> memory{};
  encode(ir::DType::i64, -9007199254740992.0, memory.data());
  CHECK(decode(ir::DType::i64, memory.data()) == -9007199254740992.0);
  for (const double wrong : {9007199254740994.0, std::numeric_limits<double>::quiet_NaN()})
    CHECK_THROWS_WITH_AS(encode(ir::DType::i64, wrong, memory.data()), doctest::Contains("expected at most 2^53"),
                         UserError);
}

}  // namespace

TEST_CASE("plan machine: random programs are what the interpreter computes") {
  const std::vector<passes::PassCall> calls = {passes::make_call("keep_in_place"), passes::make_call("fuse")};
  int refused = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    ir::Graph graph = testing::random_program(seed);
    graph.micro_batches = seed % 2 == 0 ? 1 : 3;
    try {
      passes::run_passes(graph, calls, {});
    } catch (const UserError&) {  // it returns what it replaces, or reads it later
      ++refused;
      graph = testing::random_program(seed);
      graph.carries.clear();
    }
    const StepPlan plan = make_plan(std::move(graph));
    CHECK(join(check_hazards(plan), "\n") == "");
    CHECK(join(check_views(plan.graph, plan.memory.views), "\n") == "");
    CHECK(find_difference(plan) == "");
  }
  CHECK(refused < 100);
}

TEST_CASE("plan machine: what reads each element at its own place, or each row whole, may be written over it") {
  for (const char* ops : {"      %y = aten.relu %a kernel=1 : f32[6, 8]",
                          "      %b = aten.mul.Tensor %a, %small kernel=1 : f32[6, 8]\n"
                          "      %y = aten.add.Tensor %b, %a kernel=1 : f32[6, 8]",
                          "      %y = aten._log_softmax %a dim=1 half_to_float=false kernel=1 : f32[6, 8]",
                          "      %s = aten.sum.dim_IntList %a dim=[1] keepdim=true kernel=1 : f32[6, 1]\n"
                          "      %y = aten.sub.Tensor %a, %s kernel=1 : f32[6, 8]",
                          "      %y, %rstd = rms_norm %a, %w dims=1 eps=1e-05 kernel=1 : f32[6, 8], f32[6, 1]"}) {
    CAPTURE(ops);
    CHECK(find_difference(written_over(graph_with(ops), "y", "a")) == "");
  }
}

// %a is a copy of a slice: its rows are further apart than its elements need, and %b lies after the last of them.
TEST_CASE("plan machine: a value of its own with gaps between its rows has the memory that it reaches") {
  const StepPlan plan = make_plan(ir::parse_or_throw(R"(
    graph mesh [one=1] view local
      %x = input name=x : f32[4, 4]
    fwd:
      %a = aten.relu %x kernel=0 : f32[4, 4]{1024, 2}
      %b = aten.neg %x kernel=1 : f32[4, 4]
      %c = aten.neg %b kernel=2 : f32[4, 4]
      %y = aten.add.Tensor %a, %b alpha=1 kernel=3 : f32[4, 4]
      %z = aten.add.Tensor %y, %c alpha=1 kernel=4 : f32[4, 4]
      return %z
  )"));
  CHECK(join(check_hazards(plan), "\n") == "");
  CHECK(find_difference(plan) == "");
}

// %s takes the memory of %a, and %y lies there: only the one that others read is written.
TEST_CASE("plan machine: what its own kernel alone reads is not written where its op was given memory") {
  const StepPlan plan =
      make_plan(ir::parse_or_throw(graph_with("      %c = aten.sum %w kernel=1 : f32[]\n"
                                              "      %s = scale %a, %c donates=[0] kernel=2 : f32[6, 8]\n"
                                              "      %y = aten.neg %s kernel=2 : f32[6, 8]",
                                              3)));
  CHECK(print(plan).find("  %y inside %a at +0") != std::string::npos);
  CHECK(join(check_hazards(plan), "\n") == "");
  CHECK(find_difference(plan) == "");
}

TEST_CASE("plan machine: a result that is given the place of what never reaches memory lies where its line says") {
  const StepPlan plan =
      make_plan(ir::parse_or_throw(graph_with("      %c = aten.sum %w kernel=1 : f32[]\n"
                                              "      %p = aten.neg %a kernel=2 : f32[6, 8]\n"
                                              "      %y = scale %p, %c donates=[0] kernel=2 : f32[6, 8]",
                                              3)));
  CHECK(join(check_hazards(plan), "\n") == "");
  CHECK(find_difference(plan) == "");
}

TEST_CASE("plan machine: numbers of rows, read by other rows, or written over what the row alone reads") {
  const auto planned = [](const std::string& ops) {
    ir::Graph graph = ir::parse_or_throw(concat(R"(
    graph mesh [dp_shard=1] view local
      %x = input name=x : f32[4, 6]
      %w = input name=w : f32[6, 6]
      %v = input name=v : f32[6, 1]
      %q = input name=q : f32[3, 4, 2]
    fwd:
      %h = aten.mm %x, %w : f32[4, 6]
)",
                                                ops));
    const std::vector<passes::PassCall> calls = {passes::make_call("fuse")};
    passes::run_passes(graph, calls, {});
    return make_plan(std::move(graph));
  };
  const std::string sums = "      %s = aten.sum.dim_IntList %h dim=[-1] keepdim=true : f32[4, 1]\n";
  CHECK(find_difference(planned(sums + "      %z = aten.mul.Tensor %q, %s : f32[3, 4, 2]\n  return %z")) == "");
  const StepPlan over = planned(concat("      %b = aten.mm %x, %v : f32[4, 1]\n", sums,
                                       "      %t = aten.sub.Tensor %s, %b : f32[4, 1]\n"
                                       "      %z = aten.mul.Tensor %h, %t : f32[4, 6]\n  return %t, %z"));
  CHECK(over.memory.inside.size() == 2);  // %t over %b, %z over %h
  CHECK(find_difference(over) == "");
}

TEST_CASE("plan machine: a kernel that reads what it has written over makes other numbers") {
  const char* const kTorn[] = {
      // a sum over all of it, and one over all rows
      "      %s = aten.sum %a kernel=1 : f32[]\n"
      "      %y = aten.sub.Tensor %a, %s kernel=1 : f32[6, 8]",
      "      %s = aten.sum.dim_IntList %a dim=[0] keepdim=true kernel=1 : f32[1, 8]\n"
      "      %y = aten.sub.Tensor %a, %s kernel=1 : f32[6, 8]",
      // rows that a norm reads whole, beside an op that reads all of them
      "      %n, %rstd = rms_norm %a, %w dims=1 eps=1e-05 kernel=1 : f32[6, 8], f32[6, 1]\n"
      "      %s = aten.sum %a kernel=1 : f32[]\n"
      "      %y = aten.add.Tensor %n, %s kernel=1 : f32[6, 8]",
      // a number of each row, read by other rows than its own
      "      %q = view %x : f32[4, 6, 2]\n"
      "      %s = aten.sum.dim_IntList %a dim=[-1] keepdim=true kernel=1 : f32[6, 1]\n"
      "      %m = aten.mul.Tensor %q, %s kernel=1 : f32[4, 6, 2]\n"
      "      %v = view %m : f32[6, 8]\n"
      "      %y = aten.neg %v kernel=1 : f32[6, 8]",
      // other places
      "      %t = view %a : f32[8, 6]\n"
      "      %u = aten.t %t : f32[6, 8]{1, 6}\n"
      "      %v = view %x : f32[6, 8]\n"
      "      %p = aten.mul.Scalar %v other=2.0 kernel=1 : f32[6, 8]\n"
      "      %r = aten.cat [%a, %a] dim=0 kernel=1 : f32[12, 8]\n"
      "      %h = narrow %r dim=0 length=6 start=3 : f32[6, 8]\n"
      "      %y = aten.add.Tensor %p, %h kernel=1 : f32[6, 8]",
  };
  for (const char* ops : kTorn) {
    CAPTURE(ops);
    CHECK(find_difference(written_over(graph_with(ops), "y", "a")) != "");
  }
}

TEST_CASE("plan machine: what is drawn depends on seed, step and micro-batch, each to its last bit") {
  ir::Graph graph = ir::parse_or_throw(R"(
    graph mesh [dp_shard=1] view local
      %x = input name=x : f32[8, 8]
    fwd:
      %y, %s = dropout %x keep=0.5 kernel=0 stream=1 : f32[8, 8], i64[2] at drop
      return %y
  )");
  graph.micro_batches = 2;
  const StepPlan plan = make_plan(std::move(graph));
  using ir::interp::Array;
  const Array ones{ir::DType::f32, {8, 8}, std::vector<double>(64, 1)};
  const std::vector<Inputs> batch = {{{"x", ones}, {"x@1", ones}}};
  const std::vector<std::vector<Inputs>> batches = {batch, batch};
  const auto drawn = [&](uint64_t seed) {
    const Outcome outcome = run(plan, batches, {.seed = seed});
    REQUIRE(outcome.faults.empty());
    return std::vector<Array>{outcome.steps[0][0].outputs[0], outcome.steps[1][0].outputs[0]};
  };
  const uint64_t seed = (uint64_t{1} << 63) + 2;
  CHECK(drawn(seed) == drawn(seed));
  CHECK(drawn(seed)[0] != drawn(seed + 1)[0]);
  CHECK(drawn(seed)[0] != drawn(seed)[1]);
  const auto of_micro_batch = [&](int64_t micro_batch) {
    const std::vector<const Array*> in = {&ones};
    return ir::interp::find_kernel("dropout")({.op = *plan.graph.find_value("y")->producer(),
                                               .operands = in,
                                               .host = {.seed = seed, .micro_batch = micro_batch},
                                               .axis_rank = 0})[0];
  };
  CHECK(of_micro_batch(1) == drawn(seed)[0]);  // outputs are those of the last one
  CHECK(of_micro_batch(0) != of_micro_batch(1));
}

TEST_CASE("plan machine: a constant whose bits are others than the plan's text says is refused") {
  StepPlan plan = make_plan(ir::parse_or_throw(R"(
    graph mesh [dp_shard=1] view local
      %x = input name=x : f32[3]
      %c = constant index=0 : f32[3]
    fwd:
      %y = aten.mul.Tensor %x, %c kernel=0 : f32[3]
      return %y
  )"));
  using ir::interp::Array;
  const std::vector<float> floats = {1, 2, 0.5};
  const Array x{ir::DType::f32, {3}, {1, 1, 1}}, c{ir::DType::f32, {3}, {1, 2, 0.5}};
  const auto outcome_of = [&](const Array& constant) {
    const std::vector<Inputs> batch = {{{"x", x}, {"constant.0", constant}}};
    return run(plan, {batch}).steps[0][0].outputs[0];
  };
  Array other = c;
  other.data[2] = 0.25;
  CHECK(outcome_of(other) == other);  // bits=none
  plan.constant_bits = {xxh3(std::as_bytes(std::span(floats)))};
  CHECK(outcome_of(c) == c);
  CHECK_THROWS_WITH_AS(outcome_of(other), doctest::Contains("as the plan's text says"), UserError);
}

}  // namespace sfsdp::plan::machine::plan_machine_test
