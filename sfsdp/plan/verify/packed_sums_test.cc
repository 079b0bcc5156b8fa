// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/verify/packed_sums.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/plan/verify/axis_states.h"
#include "sfsdp/plan/verify/layouts.h"
#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::plan::packed_sums_test {
namespace {

// Gradients of two units' norms, as wide and packed alike, which ranks of tp have parts of: summed at once.
const std::string kStep = testing::dedent(R"(
  graph mesh [dp_shard=2, tp=2] view local
    %a = param members=[a.v, a.w] name=a.flat numels=[2, 2] offsets=[0, 2] size=4 unit=a : f32[2/dp_shard] at a
    %b = param members=[b.v, b.w] name=b.flat numels=[2, 2] offsets=[0, 2] size=4 unit=b : f32[2/dp_shard] at b
    %bad = state name=bad : f32[]
    %x = input name=x : f32[2] own(dp_shard)
  bwd:
    %p = as_summand %x axis=tp : f32[2] sum(tp)
    %q = aten.neg %p : f32[2] sum(tp)
    %b.packed = pack [%p, %q] offsets=[0, 2] : f32[4] sum(tp) at b
    %b.rs = reduce_scatter %b.packed axis=dp_shard dim=0 : f32[2] sum(tp) at b
    %a.packed = pack [%q, %p] offsets=[0, 2] : f32[4] sum(tp) at a
    %a.rs = reduce_scatter %a.packed axis=dp_shard dim=0 : f32[2] sum(tp) at a
  clip:
    %packed = pack [%a.rs, %b.rs] offsets=[0, 64] : f32[128] sum(tp)
    %all.start = all_reduce.start %packed axis=tp : async f32[128]
    %all = wait %all.start : f32[128]
    %a.ar = view %all offset=0 : f32[2] at a
    %a.grad = gradient %a.ar param=a.flat : f32[2] at a
    %b.ar = view %all offset=64 : f32[2] at b
    %b.grad = gradient %b.ar param=b.flat : f32[2] at b
  opt:
    %a.new = sgd %a, none, %a.grad, %bad donates=[0] momentum=0.0 weight_decay=0.1 : f32[2/dp_shard]
    %b.new = sgd %b, none, %b.grad, %bad donates=[0] momentum=0.0 weight_decay=0.1 : f32[2/dp_shard]
    return %bad
    carry %a = %a.new
    carry %b = %b.new
)");

std::string wrong_with(const ir::Graph& graph) {
  std::string wrong = check_axis_states(graph) + verify_layouts(graph);
  return wrong + check_packed_sums(graph);
}

struct Mutant {
  const char *what, *from, *to, *expected;
};

TEST_CASE("check_packed_sums: gradients that are summed at once are sound, and each change that breaks them is found") {
  CHECK(wrong_with(ir::parse_or_throw(kStep)) == "");
  const std::vector<Mutant> mutants = {
      {"a gradient that is left out", "%b.ar = view %all offset=64 : f32[2]", "%b.ar = cast %b.rs : f32[2]",
       "its type says whole"},
      {"a gradient that is left out, and says so", "%b.grad = gradient %b.ar param=b.flat : f32[2]",
       "%b.grad = gradient %b.rs param=b.flat : f32[2] sum(tp)", "is a summand"},
      {"another in its place", "pack [%a.rs, %b.rs]", "pack [%a.rs, %a.rs]", "%a.rs is summed twice"},
      {"one that is packed twice", "pack [%a.rs, %b.rs] offsets=[0, 64] : f32[128]",
       "pack [%a.rs, %b.rs, %b.rs] offsets=[0, 64, 66] : f32[128]", "%b.rs is summed twice"},
      {"views that are swapped", "offset=0 : f32[2] at a\n  %a.grad = gradient %a.ar param=a.flat",
       "offset=64 : f32[2] at a\n  %a.grad = gradient %a.ar param=a.flat", "made at b"},
      {"both of one sum", "%b.ar = view %all offset=64", "%b.ar = view %all offset=0", "it is of the sum that %a.grad"},
      {"gradients that are packed in another order", "pack [%a.rs, %b.rs]", "pack [%b.rs, %a.rs]", "made at b"},
      {"gradients of each other's", "gradient %a.ar param=a.flat", "gradient %a.ar param=b.flat", "made at a"},
      {"a view between two", "offset=64 : f32[2] at b", "offset=63 : f32[2] at b", "no operand of %packed lies there"},
      {"a sum that nobody reads", "%packed = pack [%a.rs, %b.rs] offsets=[0, 64]",
       "%more = aten.neg %b.rs : f32[2] sum(tp)\n  %packed = pack [%a.rs, %b.rs, %more] offsets=[0, 64, 66]",
       "%more is summed, and no gradient reads the sum"},
      {"the wrong axis", "%packed axis=tp", "%packed axis=dp_shard", "adds up parts of one whole"},
      {"one axis too many", "%packed axis=tp", "%packed axis=[dp_shard, tp]", "adds up parts of one whole"},
      {"the largest in place of the sum", "%packed axis=tp", "%packed axis=tp op=max",
       "all_reduce of what is a summand"},
      {"a sum that is made again", "%a.grad = gradient %a.ar",
       "%again = all_reduce %a.ar axis=tp : f32[2]\n  %a.grad = gradient %again", "all_reduce of what is whole"},
      {"what is whole is summed", "%packed = pack [%a.rs, %b.rs]",
       "%one = all_reduce %b.rs axis=tp : f32[2] at b\n  %packed = pack [%a.rs, %one]", "operand 0 is a summand"},
      {"another bucket's order", "%a.packed = pack [%q, %p] offsets=[0, 2] : f32[4]",
       "%a.packed = pack [%q] offsets=[1] : f32[4]", "expected what is packed of the members of a.flat"},
  };
  for (const Mutant& mutant : mutants) {
    CAPTURE(mutant.what);
    std::string text = kStep;
    const size_t at = text.find(mutant.from);
    REQUIRE(at != std::string::npos);
    text.replace(at, std::string_view(mutant.from).size(), mutant.to);
    const std::string wrong = wrong_with(ir::parse_or_throw(text));
    CHECK_MESSAGE(wrong.find(mutant.expected) != std::string::npos, "\"", wrong, "\" lacks ", mutant.expected);
  }
}

}  // namespace
}  // namespace sfsdp::plan::packed_sums_test
