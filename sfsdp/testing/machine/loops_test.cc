// SPDX-License-Identifier: BSD-3-Clause
// Loops whose number of trips is read from memory: the machine against the interpreter, and plans that are broken in one place.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/passes/registry.h"
#include "sfsdp/plan/verify/hazards.h"
#include "sfsdp/plan/verify/verify_plan.h"
#include "sfsdp/testing/machine/reference.h"

namespace sfsdp::plan::machine::loops_test {
namespace {

// x becomes 0.5 x + w as often as %n says; two values of the body share memory, one is made before it and read in each trip.
constexpr const char* kLocal = R"(
graph mesh [dp_shard=1] view local
  %w = param name=w : f32[64]
  %n = state name=n : i64[]
  %x = input name=x : f32[64]
fwd:
  %v = aten.neg %w kernel=0 : f32[64]
  %x0 = aten.mul.Scalar %x kernel=1 other=1.0 : f32[64]
  %i = loop %n, %x0 at_most=4 donates=[1] kernel=2 : f32[64]
  %a = aten.mul.Scalar %i kernel=3 other=0.5 : f32[64]
  %b = aten.sub.Tensor %a, %v kernel=4 : f32[64]
  %s = store %i, %b donates=[0] kernel=5 : f32[64]
  %y = end %s donates=[0] kernel=6 : f32[64]
  %z = aten.neg %y kernel=7 : f32[64]
  return %z
)";

// Rounds of a sum over two ranks; a gather that starts before the loop is waited for after it.
constexpr const char* kRounds = R"(
graph mesh [dp_shard=2] view local
  %w = param name=w : f32[32/dp_shard]
  %n = state name=n : i64[]
  %x = input name=x : f32[64] own(dp_shard)
fwd:
  %v = aten.neg %w kernel=0 : f32[32]
  %g = all_gather.start %v axis=dp_shard dim=0 : async f32[64]
  %x0 = aten.mul.Scalar %x kernel=1 other=1.0 : f32[64]
  %i = loop %n, %x0 at_most=3 donates=[1] kernel=2 : f32[64]
  %a = aten.mul.Scalar %i kernel=3 other=0.5 : f32[64]
  %r = all_reduce.start %a axis=dp_shard : async f32[64]
  %t = aten.neg %i kernel=4 : f32[64]
  %sum = wait %r : f32[64]
  %b = aten.add.Tensor %sum, %t kernel=5 : f32[64]
  %s = store %i, %b donates=[0] kernel=6 : f32[64]
  %y = end %s donates=[0] kernel=7 : f32[64]
  %full = wait %g : f32[64]
  %z = aten.add.Tensor %y, %full kernel=8 : f32[64]
  %e = all_reduce.start %z axis=dp_shard : async f32[64]
  %o = wait %e : f32[64]
  return %o
)";

Edit with_trips(double trips) {
  return [trips](std::vector<Inputs>& by_rank) {
    for (Inputs& inputs : by_rank) inputs.at("n").data = {trips};
  };
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE_MESSAGE(at != std::string::npos, from);
  return text.replace(at, from.size(), to);
}

StepPlan plan_of(const std::string& text) { return make_plan(ir::parse_or_throw(text)); }

// What the verifier says of a graph's text.
std::string errors_of(const std::string& text) {
  const ir::ParseResult parsed = ir::parse(text);
  REQUIRE_MESSAGE(parsed.ok(), ir::to_string(parsed.diagnostics));
  if (const auto wrong = ir::verify(parsed.graph); !wrong.empty()) return ir::to_string(wrong);
  return join(verify_plan(make_plan(parsed.graph.clone())), "\n");
}

Buffer& buffer_of(StepPlan& plan, const std::string& name) {
  const auto found =
      std::ranges::find_if(plan.memory.buffers, [&](const Buffer& b) { return b.value->name() == name; });
  REQUIRE_MESSAGE(found != plan.memory.buffers.end(), name);
  return *found;
}

bool says(const std::string& errors, const std::string& expected) {
  const bool found = errors.find(expected) != std::string::npos;
  if (!found) MESSAGE("got: ", errors);
  return found;
}

}  // namespace

TEST_CASE(
    "loops: 0, 1, 3 trips and the most, as data say: the plan is sound and the machine computes what the graph means") {
  for (const char* text : {kLocal, kRounds}) {
    const StepPlan plan = plan_of(text);
    CHECK(join(verify_plan(plan), "\n") == "");
    for (const double trips : {0.0, 1.0, 3.0}) {
      CAPTURE(trips);
      CHECK(faults_under(plan, 20, with_trips(trips)) == "");
    }
  }
  CHECK(faults_under(plan_of(kLocal), 20, with_trips(4)) == "");
}

TEST_CASE("loops: in each of three micro-batches") {
  for (const char* text : {kLocal, kRounds}) {
    const StepPlan plan = plan_of(replaced(text, "view local", "view local micro_batches=3"));
    CHECK(join(verify_plan(plan), "\n") == "");
    for (const double trips : {0.0, 2.0}) CHECK(faults_under(plan, 20, with_trips(trips)) == "");
  }
}

TEST_CASE("when: its body runs once or not at all") {
  for (const char* dtype : {"i64[]", "b1[]"}) {
    std::string text = replaced(kLocal, "loop %n, %x0 at_most=4", "when %n, %x0");
    text = replaced(text, "name=n : i64[]", concat("name=n : ", dtype));
    const StepPlan plan = plan_of(text);
    CHECK(join(verify_plan(plan), "\n") == "");
    for (const double trips : {0.0, 1.0}) CHECK(faults_under(plan, 20, with_trips(trips)) == "");
  }
}

TEST_CASE("loops: ranks may make other numbers of trips where no collective is in the body") {
  const std::string text =
      replaced(replaced(kLocal, "dp_shard=1", "dp_shard=2"), "f32[64]\nfwd", "f32[64] own(dp_shard)\nfwd");
  const StepPlan plan =
      plan_of(replaced(replaced(text, "  return %z", "  %o = all_reduce %z axis=dp_shard : f32[64]\n  return %o"),
                       "%n = state name=n : i64[]", "%n = input name=n : i64[] own(dp_shard)"));
  CHECK(join(verify_plan(plan), "\n") == "");
  CHECK(faults_under(plan, 20, [](std::vector<Inputs>& by_rank) {
          by_rank[0].at("n").data = {3};
          by_rank[1].at("n").data = {1};
        }) == "");
}

TEST_CASE("loops: the text reads back, and the number of trips is hashed") {
  const StepPlan plan = plan_of(kLocal), other = plan_of(replaced(kLocal, "at_most=4", "at_most=5"));
  CHECK(print(parse_plan(print(plan))) == print(plan));
  CHECK(hash(parse_plan(print(plan))) == hash(plan));
  CHECK(hash(other) != hash(plan));
}

TEST_CASE("loops: more trips than the text says are a fault") {
  const StepPlan plan = plan_of(kLocal);
  std::vector<Inputs> inputs = ir::interp::seeded_inputs(plan.graph, 7);
  inputs[0].at("n").data = {5};
  CHECK(says(join(run(plan, {inputs}).faults, "\n"), "to make 5 trips, at most 4"));
  CHECK_THROWS_AS(ir::interp::run(plan.graph, inputs), UserError);
}

TEST_CASE("loops: passes and the simulation say that they know none") {
  ir::Graph graph = ir::parse_or_throw(kLocal);
  const std::vector<passes::PassCall> calls = {passes::make_call("dead_code")};
  CHECK_THROWS_WITH_AS(passes::run_passes(graph, calls, {}), doctest::Contains("knows no loops, and the graph has"),
                       UserError);
}

TEST_CASE("loops: broken graphs are refused") {
  struct Mutant {
    const char *what, *text, *from, *to, *expected;
  };
  const Mutant mutants[] = {
      {"a value of the body is read outside", kLocal, "aten.neg %y kernel=7", "aten.neg %b kernel=7",
       "lives in one trip"},
      {"what a trip begins with is read outside", kLocal, "aten.neg %y kernel=7", "aten.neg %s kernel=7",
       "whose buffer was given to"},
      {"a value of the body is returned", kLocal, "return %z", "return %a", "lives in one trip"},
      {"the body does not end", kLocal, "  %y = end %s donates=[0] kernel=6 : f32[64]\n",
       "  %y = aten.neg %s kernel=6 : f32[64]\n", "has no end"},
      {"an end without its loop", kLocal, "loop %n, %x0 at_most=4 donates=[1]", "store %x0, %x donates=[0]",
       "ends no loop"},
      {"a loop in a loop", kLocal, "  %a = aten.mul.Scalar %i kernel=3",
       "  %j = when %n, %w : f32[64]\n  %a = aten.mul.Scalar %i kernel=3", "begins in the body of"},
      {"no trips at most", kLocal, "at_most=4", "at_most=0", "has at_most=0"},
      {"trips by a real number", kLocal, "name=n : i64[]", "name=n : f32[]", "expected an integer"},
      {"trips by several numbers", kLocal, "name=n : i64[]", "name=n : i64[2]", "expected an integer"},
      {"a trip leaves another type", kLocal, "%y = end %s", "%y = end %n", "has the wrong"},
      {"a trip leaves what it does not make", kLocal, "%y = end %s", "%y = end %v", "which the body does not make"},
      {"a trip gives away what the next one reads", kLocal, "aten.sub.Tensor %a, %v kernel=4",
       "store %v, %a donates=[0] kernel=4", "which the next trip reads"},
      {"a collective of the body is waited for outside", kRounds,
       "  %sum = wait %r : f32[64]\n  %b = aten.add.Tensor %sum, %t", "  %b = aten.add.Tensor %t, %t",
       "nothing waits for it"},
      {"one that starts outside is waited for in the body", kRounds, "  %b = aten.add.Tensor %sum, %t kernel=5",
       "  %full = wait %g : f32[64]\n  %b = aten.add.Tensor %sum, %t kernel=5", "waits in each trip"},
      {"a sum over micro-batches in the body", kLocal, "aten.sub.Tensor %a, %v kernel=4", "accumulate %a kernel=4",
       "adds up over micro-batches"},
      {"the number of trips is each rank's own", kRounds, "%n = state name=n : i64[]",
       "%n = input name=n : i64[] own(dp_shard)", "may differ from rank to rank"},
      {"the number of trips is computed of the batch", kRounds, "loop %n,", "loop %m,", "may differ from rank to rank"},
      {"what is carried is not in one place", kLocal, "at_most=4 donates=[1]", "at_most=4", "may lie in two places"},
      {"a loop shares a kernel", kLocal, "donates=[1] kernel=2", "donates=[1] kernel=1", "kernel"},
      {"a trip leaves memory of its own", kLocal, "store %i, %b donates=[0] kernel=5", "aten.neg %b kernel=5",
       "may lie in two places"},
  };
  for (const Mutant& mutant : mutants) {
    CAPTURE(mutant.what);
    std::string text = replaced(mutant.text, mutant.from, mutant.to);
    if (text.find("loop %m,") != std::string::npos)
      text = replaced(text, "  %x0 =", "  %c = aten.sum %x kernel=1 : f32[]\n  %m = cast %c kernel=1 : i64[]\n  %x0 =");
    if (text.find("  %full = wait %g : f32[64]\n  %b") != std::string::npos)
      text = replaced(text, "kernel=7 : f32[64]\n  %full = wait %g : f32[64]\n", "kernel=7 : f32[64]\n");
    CHECK(says(errors_of(text), mutant.expected));
  }
}

TEST_CASE("loops: broken plans are caught by the hazards, and the machine computes other numbers") {
  struct Mutant {
    const char *what, *text, *expected;
    std::function<void(StepPlan&)> apply;
  };
  const auto without = [](size_t from, size_t to, size_t number) {
    return [=](StepPlan& p) {
      REQUIRE(std::erase_if(p.edges, [&](const Edge& e) {
                return e.from.lane == from && e.to.lane == to && e.to.number == number;
              }) > 0);
    };
  };
  const Mutant mutants[] = {
      {"a buffer lies over what the second trip reads", kLocal, "which holds",
       [](StepPlan& p) { buffer_of(p, "a").offset = buffer_of(p, "v").offset; }},
      {"a buffer of the body lies over what is carried", kRounds, "which holds",
       [](StepPlan& p) { buffer_of(p, "a").offset = buffer_of(p, "x0").offset; }},
      {"the body's collective begins without the loop", kRounds, "before", without(0, 1, 1)},
      {"a kernel of the body does not wait for the collective", kRounds, "before lane dp_shard/0 has written it",
       without(1, 0, 5)},
      {"what follows does not wait for the gather that the loop stands over", kRounds,
       "before lane dp_shard/0 has written it", without(1, 0, 8)},
  };
  for (const Mutant& mutant : mutants) {
    CAPTURE(mutant.what);
    StepPlan plan = plan_of(mutant.text);
    REQUIRE(join(check_hazards(plan), "\n") == "");
    mutant.apply(plan);
    CHECK(says(join(check_hazards(plan), "\n"), mutant.expected));
    std::string faults;
    for (const double trips : {0.0, 1.0, 3.0})
      if (faults.empty()) faults = faults_under(plan, 20, with_trips(trips));
    CHECK(faults != "");
  }
}

}  // namespace sfsdp::plan::machine::loops_test
