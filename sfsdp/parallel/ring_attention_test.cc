// SPDX-License-Identifier: BSD-3-Clause
// Ring attention in programs of the IR: what it sends, that it means what the whole step does, and that programs that are wrong in one
// place are refused by the verifier, or mean something else in the interpreter.
#include "sfsdp/parallel/ring_attention.h"

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/parallel/partition.h"
#include "sfsdp/plan/verify/layouts.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/interp/interpreter.h"
#include "sfsdp/testing/sentences.h"

namespace sfsdp::parallel::ring_attention_test {
namespace {

using ir::interp::Array;

const std::string kStep = testing::dedent(testing::kSentences);

std::string partitioned(int64_t ranks, bool balanced, const std::string& step = kStep) {
  ir::Graph graph = ir::parse_or_throw(step);
  graph.mesh = {{"cp", ranks}};
  graph.view = ir::Graph::View::Local;
  const ContextParallelOptions options = {.load_balance = balanced, .rotate_method = RotateMethod::Ring};
  partition(graph, {"cp", ranks}, {}, {}, &options);
  return ir::print(graph);
}

// The largest difference of what any rank returns and carries on from what the whole step does.
double difference(const ir::Graph& parts, int64_t ranks, const std::string& step = kStep) {
  const ir::Graph whole = ir::parse_or_throw(step);
  const ir::interp::RunOptions exact = {.rounding = ir::interp::Rounding::None};
  const auto given = ir::interp::seeded_inputs(whole, 7);
  const auto expected = ir::interp::run(whole, given, exact).ranks[0];
  const auto got = ir::interp::run(parts, std::vector<ir::interp::Inputs>(static_cast<size_t>(ranks), given[0]), exact);
  double most = 0;
  const auto compare = [&](const Array& a, const Array& b) {
    most = std::max(most, ir::interp::largest_difference(a, b));
  };
  for (const auto& rank : got.ranks) {
    compare(rank.outputs[0], expected.outputs[0]);
    for (const auto& [name, array] : expected.carried) compare(rank.carried.at(name), array);
  }
  return most;
}

TEST_CASE("ring attention: a step means on each rank what it means as a whole, in float64") {
  for (const int64_t ranks : {2, 4, 8})
    for (const bool balanced : {false, true}) {
      if (balanced && ranks == 8) continue;  // of 8 tokens
      CAPTURE(ranks);
      CAPTURE(balanced);
      const ir::Graph graph = ir::parse_or_throw(partitioned(ranks, balanced));
      CHECK(ir::verify(graph).empty());
      CHECK(plan::verify_layouts(graph) == "");
      CHECK(difference(graph, ranks) < 1e-11);
    }
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

// All ranks have which document each token of the sequence is in.
TEST_CASE("ring attention: within documents too") {
  std::string step = replaced(kStep, "  %t = input name=t", "  %d = input name=d : i64[2, 8]\n  %t = input name=t");
  step = replaced(step, "sdpa %q, %k, %k is_causal=true", "sdpa %q, %k, %k, %d documents=true is_causal=true");
  step = replaced(step, "%a, %lse is_causal=true", "%a, %lse, %d documents=true is_causal=true");
  for (const int64_t ranks : {2, 4}) {
    const ir::Graph graph = ir::parse_or_throw(partitioned(ranks, true, step));
    CHECK(ir::verify(graph).empty());
    CHECK(plan::verify_layouts(graph) == "");
    CHECK(difference(graph, ranks, step) < 1e-11);
  }
}

// Where each attention's method is chosen by who knows the machine.
TEST_CASE("ring attention: of an attention that is named, beside one by what it sends") {
  const auto by_names = [](const std::map<std::string, RotateMethod>& methods) {
    ir::Graph graph = ir::parse_or_throw(kStep);
    graph.mesh = {{"cp", 2}};
    graph.view = ir::Graph::View::Local;
    const ContextParallelOptions options = {.rotate_method = RotateMethod::Auto, .methods = methods};
    partition(graph, {"cp", 2}, {}, {}, &options);
    return ir::print(graph);
  };
  const std::string ring = partitioned(2, true), sends_less = by_names({});
  CHECK(by_names({{"a", RotateMethod::Ring}, {"dq", RotateMethod::Ring}}) == ring);
  CHECK(by_names({{"another", RotateMethod::Ring}}) == sends_less);
  CHECK(by_names({{"a", RotateMethod::AllGather}, {"dq", RotateMethod::AllGather}}) == sends_less);
  CHECK(sends_less != ring);
}

// Each rank is sent the keys and values of each other, forward and backward, and sends gradients of both home.
TEST_CASE("ring attention: permutes alone, as many as there are other ranks") {
  for (const int64_t ranks : {2, 4}) {
    const ir::Graph graph = ir::parse_or_throw(partitioned(ranks, true));
    std::map<std::string, int64_t> counts;
    for (const auto& op : graph.ops())
      if (ir::is_collective(*op) && op->result()->type().dims.size() == 4)
        ++counts[concat(ir::to_string(op->section), ' ', op->opcode)];
    CHECK(counts == std::map<std::string, int64_t>{{"fwd permute", 2 * (ranks - 1)}, {"bwd permute", 4 * (ranks - 1)}});
  }
}

struct Mutant {
  const char *what, *from, *to;
  enum class By : uint8_t { Verifier, Interpreter } by = By::Verifier;
};

const std::vector<Mutant> kMutants = {
    {"keys of another rank than attention says", "permute %k.flat axis=cp shift=1", "permute %k.flat axis=cp shift=2"},
    {"attention says another rank", "is_causal=true shift=1 :", "is_causal=true shift=2 :"},
    {"own keys as another rank's", "sdpa %q, %k.from1_1, ", "sdpa %q, %k, "},
    {"another rank's keys as the own", "sdpa %q, %k, %k axis=cp balanced=true is_causal=true shift=0",
     "sdpa %q, %k, %k axis=cp balanced=true is_causal=true shift=3"},
    {"a part of the keys is left out", "sdpa_merge %a.to1, %lse.to1, %a.of2, %lse.of2",
     "sdpa_merge %a, %lse, %a.of2, %lse.of2"},
    {"a part of the keys is seen twice", "sdpa_merge %a.to1, %lse.to1, %a.of2, %lse.of2",
     "sdpa_merge %a.to1, %lse.to1, %a.of1, %lse.of1"},
    {"attention by the sums of other keys", "sdpa_merge %a.to1, %lse.to1, %a.of2, %lse.of2",
     "sdpa_merge %a.to1, %lse.to1, %a.of2, %lse.of1"},
    {"attention to some keys is read", "aten.transpose.int %a.to3", "aten.transpose.int %a.to2"},
    {"parts are added in place of merged",
     "%a.to1, %lse.to1 = sdpa_merge %a, %lse, %a.of1, %lse.of1 : f32[2, 2, 2/cp, 2]{8, 2, 4, 1}, f32[2, 2, 2/cp]{4, 1, "
     "2}",
     "%lse.to1 = aten.add.Tensor %lse, %lse.of1 : f32[2, 2, 2/cp]{4, 1, 2}\n  %a.to1 = aten.add.Tensor %a, %a.of1 : "
     "f32[2, 2, 2/cp, 2]{8, 2, 4, 1}"},
    {"backward by the sums of some keys", "%a.to3, %lse.to3 axis=cp", "%a.to3, %lse.to2 axis=cp"},
    {"a gradient is not sent home", "aten.add.Tensor %dk.flat, %dk.of1.home", "aten.add.Tensor %dk.flat, %dk.of1.flat"},
    {"a gradient is sent to another rank", "permute %dk.of1.flat axis=cp shift=3",
     "permute %dk.of1.flat axis=cp shift=2"},
    {"a gradient is left out", "= aten.permute %dq.to3 ", "= aten.permute %dq.to2 "},
    {"a gradient is added twice", "aten.add.Tensor %dv.to1, %dv.of2.home", "aten.add.Tensor %dv.to1, %dv.of1.home"},
    {"a gradient is counted twice", "aten.add.Tensor %dv.to1, %dv.of2.home",
     "aten.add.Tensor %dv.to1, %dv.of2.home alpha=2"},
    {"the gradient of values as keys'", "aten.add.Tensor %dk.to1, %dk.of2.home",
     "aten.add.Tensor %dk.to1, %dv.of2.home"},
    {"the type says all keys", "%k.from1 = permute %k.flat axis=cp shift=1 : f32[2, 2/cp, 2, 2]",
     "%k.from1 = permute %k.flat axis=cp shift=1 : f32[2, 2, 2, 2]"},
    {"another rank's positions",
     "balanced=true is_causal=true shift=1 :", "is_causal=true shift=1 :", Mutant::By::Interpreter},
};

TEST_CASE("ring attention that is wrong in one place is refused, or means something else") {
  constexpr int64_t kRanks = 4;
  const std::string text = partitioned(kRanks, true);
  for (const Mutant& mutant : kMutants) {
    CAPTURE(mutant.what);
    const ir::Graph graph = ir::parse_or_throw(replaced(text, mutant.from, mutant.to));
    CHECK((plan::verify_layouts(graph) != "") == (mutant.by == Mutant::By::Verifier));
    if (mutant.by == Mutant::By::Interpreter) {
      CHECK(ir::verify(graph).empty());
      CHECK_FALSE(difference(graph, kRanks) < 1e-4);
    }
  }
}

TEST_CASE("ring attention: what another rank has is read by attention alone, and what all have is not sent round") {
  const auto said = [](const std::string& ops) {
    return plan::verify_layouts(
        ir::parse_or_throw(concat("graph mesh [cp=3] view local\n  %x = input name=x : f32[6, 4]\nfwd:\n",
                                  "  %own = own_part %x axis=cp dim=0 : f32[2/cp, 4]\n", ops)));
  };
  const std::string sent = "  %sent = permute %own axis=cp shift=1 : f32[2/cp, 4]\n";
  CHECK(said(sent +
             "  %back = permute %sent axis=cp shift=2 : f32[2/cp, 4]\n  %y = aten.relu %back : f32[2/cp, 4]\n") == "");
  CHECK(said(sent + "  %y = aten.relu %sent : f32[2/cp, 4]\n")
            .find("the part of the rank 1 before, cut in dimension 0 is "
                  "read as if it were all") != std::string::npos);
  CHECK(said(sent + "  %y = aten.add.Tensor %own, %sent : f32[2/cp, 4]\n").find("is added to what is") !=
        std::string::npos);
  CHECK(said(sent + "  %y = all_gather %sent axis=cp dim=0 : f32[6, 4]\n").find("read as if it were all") !=
        std::string::npos);
  CHECK(said("  %y = permute %x axis=cp shift=1 : f32[6, 4]\n").find("permute of what is whole") != std::string::npos);
}

// %q, %k of forward are cut in the sequence.
TEST_CASE("attention that cannot go round is refused, with the cure") {
  const auto expect = [](const char* from, const char* to, const char* why) {
    CHECK_THROWS_WITH_AS(partitioned(2, true, replaced(kStep, from, to)), doctest::Contains(why), UserError);
  };
  expect("%k is_causal=true", "%k", "is not causal, so that keys and values cannot go round");
  expect(
      "%k is_causal=true", "%k dropout_p=0.1 is_causal=true",
      "has dropout, so that keys and values cannot go round\n  expected causal attention of a sequence to itself, or "
      "another ContextParallelOptions::rotate_method");
}

}  // namespace
}  // namespace sfsdp::parallel::ring_attention_test
