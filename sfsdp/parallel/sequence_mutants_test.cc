// SPDX-License-Identifier: BSD-3-Clause
// Programs of a part of the sequence that are wrong in one place: each is refused by the verifier, or means something else in the
// interpreter, which is what the tests of partition compare.
#include <doctest/doctest.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/parallel/partition.h"
#include "sfsdp/plan/verify/layouts.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/interp/interpreter.h"
#include "sfsdp/testing/sentences.h"

namespace sfsdp::parallel::sequence_mutants_test {
namespace {

using ir::interp::Array;

constexpr int64_t kRanks = 2;

struct Mutant {
  const char *what, *from, *to;
  enum class By : uint8_t { Verifier, Interpreter } by;
};
using enum Mutant::By;

const std::vector<Mutant> kMutants = {
    {"a rank's loss is returned", "%loss.mean = div %loss.sum, %n.sum", "%loss.mean = div %loss, %n.sum", Verifier},
    {"a rank's tokens are counted", "%loss.mean = div %loss.sum, %n.sum", "%loss.mean = div %loss.sum, %n", Verifier},
    {"backward divides by a rank's tokens", "%targets, %n.sum, %l", "%targets, %n, %l", Verifier},
    {"the mean of a rank's rows", "ignore_index=1 reduction=2 :", "ignore_index=1 :", Verifier},
    {"a gradient is not added up", "carry %w = %w.grad.sum", "carry %w = %w.grad", Verifier},
    {"a table's gradient is not added up", "carry %e = %e.grad.sum", "carry %e = %e.grad", Verifier},
    {"what all ranks have is added up", "gradient %dp.whole.natural.once", "gradient %dp.whole.natural", Verifier},
    {"a part of the keys is taken for all", "sdpa %q, %k.whole,", "sdpa %q, %k,", Verifier},
    {"attention does not know its part", "%k.whole, %k.whole axis=cp balanced=true is_causal=true : f32[2, 2, 4/cp",
     "%k.whole, %k.whole is_causal=true : f32[2, 2, 4/cp", Verifier},
    {"a summand of dk is taken for the sum", "reduce_scatter %dk.w.balanced.dense axis=cp dim=0 : f32[1/cp, 2, 4, 4]",
     "own_part %dk.w.balanced.dense axis=cp dim=0 : f32[1/cp, 2, 4, 4]", Verifier},
    {"the type says one range, not a range of each sample", "%rows = aten.view %y size=[8, 5] : f32[8/cp:2, 5]",
     "%rows = aten.view %y size=[8, 5] : f32[8/cp, 5]", Verifier},
    {"targets of all ranks' tokens as a rank's", "%targets = aten.view %t.balanced.part size=[8] : i64[8/cp:2]",
     "%half = narrow %t dim=1 start=0 length=4 : i64[2, 4]\n  %targets = aten.view %half size=[8] : i64[8]", Verifier},
    {"ids of all ranks' tokens as a rank's", "embedding_backward %dx, %ids.balanced.part",
     "embedding_backward %dx, %ids", Verifier},
    {"attention of another part forward", "%k.whole, %k.whole axis=cp balanced=true is_causal=true : f32[2, 2, 4/cp",
     "%k.whole, %k.whole axis=cp is_causal=true : f32[2, 2, 4/cp", Interpreter},
    {"attention of another part backward", "%lse axis=cp balanced=true", "%lse axis=cp", Interpreter},
    {"keys are not brought into order", "%k.whole = aten.permute %k.flat.whole.natural",
     "%k.whole = aten.permute %k.flat.whole", Interpreter},
    {"keys are brought into another order", "reorder %k.flat.whole dim=1 order=[0, 2, 3, 1]",
     "reorder %k.flat.whole dim=1 order=[0, 3, 1, 2]", Interpreter},
    {"gradients of keys go to other ranks", "aten.view %dk.w.balanced size=", "aten.view %dk.w size=", Interpreter},
    {"tokens in one range, all else head and tail", "%ids.balanced.part = own_part %ids.balanced",
     "%ids.balanced.part = own_part %ids", Interpreter},
    {"targets in one range, all else head and tail", "%t.balanced.part = own_part %t.balanced",
     "%t.balanced.part = own_part %t", Interpreter},
    {"positions in one range, all else head and tail", "%p.balanced.part = own_part %p.balanced",
     "%p.balanced.part = own_part %p", Interpreter},
    {"gradients of positions are not brought into order", "as_summand %dp.whole.natural", "as_summand %dp.whole",
     Interpreter},
};

std::string replaced(std::string text, const Mutant& mutant) {
  const size_t at = text.find(mutant.from);
  REQUIRE_MESSAGE(at != std::string::npos, mutant.what);
  return text.replace(at, std::string_view(mutant.from).size(), mutant.to);
}

// The largest difference of what one rank returns and carries on from what the whole step does.
double difference(const ir::Graph& parts) {
  const ir::Graph whole = ir::parse_or_throw(testing::dedent(testing::kSentences));
  const ir::interp::RunOptions exact = {.rounding = ir::interp::Rounding::None};
  const auto given = ir::interp::seeded_inputs(whole, 7);
  const auto expected = ir::interp::run(whole, given, exact).ranks[0];
  const auto got = ir::interp::run(parts, std::vector<ir::interp::Inputs>(kRanks, given[0]), exact);
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

TEST_CASE("a step over parts of the sequence that is wrong in one place is refused, or means something else") {
  ir::Graph graph = ir::parse_or_throw(testing::dedent(testing::kSentences));
  graph.mesh = {{"cp", kRanks}};
  graph.view = ir::Graph::View::Local;
  const ContextParallelOptions options;
  partition(graph, {"cp", kRanks}, {}, {}, &options);
  const std::string text = ir::print(graph);
  CHECK(difference(ir::parse_or_throw(text)) < 1e-11);
  for (const Mutant& mutant : kMutants) {
    CAPTURE(mutant.what);
    const ir::Graph wrong = ir::parse_or_throw(replaced(text, mutant));
    const bool refused = plan::verify_layouts(wrong) != "";
    CHECK(refused == (mutant.by == Verifier));
    if (mutant.by == Interpreter) {
      CHECK(ir::verify(wrong).empty());
      CHECK(difference(wrong) > 1e-4);
    }
  }
}

}  // namespace
}  // namespace sfsdp::parallel::sequence_mutants_test
