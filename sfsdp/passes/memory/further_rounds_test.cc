// SPDX-License-Identifier: BSD-3-Clause
// further_rounds: what a mixture's rows are computed in for which there is no room at once, and that the verifier holds it to that.
#include "sfsdp/passes/memory/further_rounds.h"

#include <doctest/doctest.h>

#include <array>
#include <string>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/plan/verify/layouts.h"
#include "sfsdp/plan/verify/rounds.h"
#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::passes::further_rounds_test {
namespace {

// The first round alone, with room for 4 rows of 8: forward, and the gradients of weights and tokens.
const std::string kFirst = testing::dedent(R"(
  graph mesh [ep=2] view local
    %w = param box=ep name=w : f32[2/ep, 3, 3] at moe
    %x = input name=x : f32[4, 3]
    %order = input name=order : i64[8]
    %place = input name=place : i64[8]
  fwd:
    %ends = full value=8 : i32[4]
    %t = own_part %x axis=ep dim=0 : f32[2/ep, 3]
    %own = own_ends %ends axis=ep room=4 : i32[2/ep] at moe
    %rows = all_to_all_v %t, %order, %ends axis=ep room=4 rows=4 to=rows : f32[4, 3] rows0(ep) at moe
    %y = aten._grouped_mm %rows, %w, %own, none kernel=1 : f32[4, 3] rows0(ep) at moe
    %a = aten.silu %y kernel=1 : f32[4, 3] rows0(ep) at moe
    %back.start = all_to_all_v.start %a, %place, %ends axis=ep room=4 rows=8 to=parts : async f32[4/ep, 3] at moe
    %back = wait %back.start : f32[4/ep, 3] at moe
    %out = aten.neg %back : f32[4/ep, 3]
  bwd:
    %dy = all_to_all_v %out, %place, %ends adds=true axis=ep room=4 rows=8 to=rows : f32[4, 3] rows0(ep) at moe
    %da = aten.mul.Tensor %dy, %a : f32[4, 3] rows0(ep) at moe
    %rt = aten.t %rows : f32[3, 4]{1, 3} rows1(ep) at moe
    %dw = aten._grouped_mm %rt, %da, %own, none : f32[2/ep, 3, 3] at moe
    %dx = all_to_all_v %da, %order, %ends adds=true axis=ep room=4 rows=4 to=parts : f32[2/ep, 3] at moe
    %w.grad = gradient %dw param=w : f32[2/ep, 3, 3]
    %dx.all = all_gather %dx axis=ep dim=0 : f32[4, 3]
    return %dx.all
    carry %w = %w.grad
)");

ir::Graph with_rounds() {
  ir::Graph graph = ir::parse_or_throw(kFirst);
  const std::array calls = {make_call("further_rounds")};
  run_passes(graph, calls, {.checks = Checks::EveryPass});
  return graph;
}

TEST_CASE("further_rounds: what the first round leaves is carried by loops that make the next rounds' rows again") {
  CHECK(ir::print(with_rounds()) == testing::dedent(R"(
    graph mesh [ep=2] view local
      %w = param box=ep name=w : f32[2/ep, 3, 3] at moe
      %x = input name=x : f32[4, 3]
      %order = input name=order : i64[8]
      %place = input name=place : i64[8]
    fwd:
      %ends = full kernel=0 value=8 : i32[4]
      %rounds.further = further_rounds %ends axis=ep kernel=1 room=4 : i64[] at moe
      %t = own_part %x axis=ep dim=0 kernel=2 : f32[2/ep, 3]
      %own = own_ends %ends axis=ep kernel=3 room=4 : i32[2/ep] at moe
      %rows = all_to_all_v %t, %order, %ends axis=ep room=4 rows=4 to=rows : f32[4, 3] rows0(ep) at moe
      %y = aten._grouped_mm %rows, %w, %own, none kernel=4 : f32[4, 3] rows0(ep) at moe
      %a = aten.silu %y kernel=4 : f32[4, 3] rows0(ep) at moe
      %back.start = all_to_all_v.start %a, %place, %ends axis=ep room=4 rows=8 to=parts : async f32[4/ep, 3] at moe
      %back = wait %back.start : f32[4/ep, 3] at moe
      %round.first = full kernel=5 value=1 : i64[] at moe
      %round, %back.sum = loop %rounds.further, %round.first, %back at_most=1 donates=[1, 2] kernel=6 : i64[], f32[4/ep, 3] at moe
      %rows.again = all_to_all_v %t, %order, %ends, %round axis=ep room=4 rows=4 to=rows : f32[4, 3] rows0(ep) at moe
      %own.again = own_ends %ends, %round axis=ep kernel=7 room=4 : i32[2/ep] at moe
      %y.again = aten._grouped_mm %rows.again, %w, %own.again, none kernel=8 : f32[4, 3] rows0(ep) at moe
      %a.again = aten.silu %y.again kernel=9 : f32[4, 3] rows0(ep) at moe
      %back.again = all_to_all_v %a.again, %place, %ends, %round axis=ep room=4 rows=8 to=parts : f32[4/ep, 3] at moe
      %back.added = add_into %back.sum, %back.again donates=[0] kernel=10 : f32[4/ep, 3] at moe
      %round.next = aten.add.Scalar %round kernel=11 other=1 : i64[] at moe
      %round.stored = store %round, %round.next donates=[0] kernel=12 : i64[] at moe
      %rounds, %back.all = end %round.stored, %back.added donates=[0, 1] kernel=13 : i64[], f32[4/ep, 3] at moe
      %out = aten.neg %back.all kernel=14 : f32[4/ep, 3]
    bwd:
      %dy = all_to_all_v %out, %place, %ends adds=true axis=ep room=4 rows=8 to=rows : f32[4, 3] rows0(ep) at moe
      %da = aten.mul.Tensor %dy, %a kernel=15 : f32[4, 3] rows0(ep) at moe
      %rt = aten.t %rows : f32[3, 4]{1, 3} rows1(ep) at moe
      %dw = aten._grouped_mm %rt, %da, %own, none kernel=16 : f32[2/ep, 3, 3] at moe
      %dx = all_to_all_v %da, %order, %ends adds=true axis=ep room=4 rows=4 to=parts : f32[2/ep, 3] at moe
      %round.first_1 = full kernel=17 value=1 : i64[] at moe
      %round_1, %dw.sum, %dx.sum = loop %rounds.further, %round.first_1, %dw, %dx at_most=1 donates=[1, 2, 3] kernel=18 : i64[], f32[2/ep, 3, 3], f32[2/ep, 3] at moe
      %rows.again_1 = all_to_all_v %t, %order, %ends, %round_1 axis=ep room=4 rows=4 to=rows : f32[4, 3] rows0(ep) at moe
      %rt.again = aten.t %rows.again_1 : f32[3, 4]{1, 3} rows1(ep) at moe
      %dy.again = all_to_all_v %out, %place, %ends, %round_1 adds=true axis=ep room=4 rows=8 to=rows : f32[4, 3] rows0(ep) at moe
      %own.again_1 = own_ends %ends, %round_1 axis=ep kernel=19 room=4 : i32[2/ep] at moe
      %y.again_1 = aten._grouped_mm %rows.again_1, %w, %own.again_1, none kernel=20 : f32[4, 3] rows0(ep) at moe
      %a.again_1 = aten.silu %y.again_1 kernel=21 : f32[4, 3] rows0(ep) at moe
      %da.again = aten.mul.Tensor %dy.again, %a.again_1 kernel=22 : f32[4, 3] rows0(ep) at moe
      %dw.again = aten._grouped_mm %rt.again, %da.again, %own.again_1, none kernel=23 : f32[2/ep, 3, 3] at moe
      %dw.added = add_into %dw.sum, %dw.again donates=[0] kernel=24 : f32[2/ep, 3, 3] at moe
      %dx.again = all_to_all_v %da.again, %order, %ends, %round_1 adds=true axis=ep room=4 rows=4 to=parts : f32[2/ep, 3] at moe
      %dx.added = add_into %dx.sum, %dx.again donates=[0] kernel=25 : f32[2/ep, 3] at moe
      %round.next_1 = aten.add.Scalar %round_1 kernel=26 other=1 : i64[] at moe
      %round.stored_1 = store %round_1, %round.next_1 donates=[0] kernel=27 : i64[] at moe
      %rounds_1, %dw.all, %dx.all_1 = end %round.stored_1, %dw.added, %dx.added donates=[0, 1, 2] kernel=28 : i64[], f32[2/ep, 3, 3], f32[2/ep, 3] at moe
      %w.grad = gradient %dw.all param=w : f32[2/ep, 3, 3]
      %dx.all = all_gather %dx.all_1 axis=ep dim=0 : f32[4, 3]
      return %dx.all
      carry %w = %w.grad
  )"));
  CHECK(plan::verify_layouts(with_rounds()) == "");
}

TEST_CASE("check_rounds: a loop that is missing, or does something else, is refused by name") {
  CHECK(plan::check_rounds(with_rounds()) == "");
  CHECK(plan::check_rounds(ir::parse_or_throw(kFirst)).find("%back is of the first round's rows alone") !=
        std::string::npos);
  struct Mutant {
    const char *what, *from, *to, *expected;
  };
  for (const Mutant& mutant : std::vector<Mutant>{
           {"as many trips as a number says", "%round, %back.sum = loop %rounds.further,",
            "%one = full value=1 : i64[]\n  %round, %back.sum = loop %one,", "as something else than the rounds"},
           {"rounds of other offsets", "%rounds.further = further_rounds %ends",
            "%others = full value=4 : i32[4]\n  %rounds.further = further_rounds %others",
            "as something else than the rounds"},
           {"rounds of another room", "further_rounds %ends axis=ep kernel=1 room=4",
            "further_rounds %ends axis=ep kernel=1 room=8", "as something else than the rounds"},
           {"the first round again", "%round.first = full kernel=5 value=1", "%round.first = full kernel=5 value=0",
            "does not count rounds from 1"},
           {"every other round", "%round.next = aten.add.Scalar %round kernel=11 other=1",
            "%round.next = aten.add.Scalar %round kernel=11 other=2", "does not count rounds from 1"},
           {"one round all the time", "%round.stored = store %round, %round.next",
            "%round.stored = store %round, %round", "does not count rounds from 1"},
           {"tokens of the first round", "%rows.again = all_to_all_v %t, %order, %ends, %round axis",
            "%rows.again = all_to_all_v %t, %order, %ends axis", "%back.again is made otherwise"},
           {"rows of the first round", "%y.again = aten._grouped_mm %rows.again,", "%y.again = aten._grouped_mm %rows,",
            "%back.again is made otherwise"},
           {"ends of the first round", "%y.again = aten._grouped_mm %rows.again, %w, %own.again,",
            "%y.again = aten._grouped_mm %rows.again, %w, %own,", "%back.again is made otherwise"},
           {"rows go back to other places", "%back.again = all_to_all_v %a.again, %place,",
            "%back.again = all_to_all_v %a.again, %order,", "%back.again is made otherwise"},
           {"an op is left out", "%back.again = all_to_all_v %a.again,", "%back.again = all_to_all_v %y.again,",
            "%back.again is made otherwise"},
           {"what is made is not added", "%back.added = add_into %back.sum, %back.again",
            "%back.added = store %back.sum, %back.again", "is not the sum of it and the round's"},
           {"the first round is read as all", "%out = aten.neg %back.all", "%out = aten.neg %back",
            "%back is of the first round's rows alone"},
           {"a gradient of the first round", "gradient %dw.all", "gradient %dw",
            "%dw is of the first round's rows alone"},
           {"a gradient of the first round's rows", "%dw.again = aten._grouped_mm %rt.again,",
            "%dw.again = aten._grouped_mm %rt,", "%dw.again is made otherwise"},
           {"a round that no loop counts", "%rows = all_to_all_v %t, %order, %ends axis",
            "%five = full value=5 : i64[]\n  %rows = all_to_all_v %t, %order, %ends, %five axis", "its round is %five"},
           {"the round of another loop", "%own.again_1 = own_ends %ends, %round_1",
            "%own.again_1 = own_ends %ends, %rounds", "%dw.again is made otherwise"},
           {"what is made is added twice", "%back.added = add_into %back.sum, %back.again",
            "%back.added = add_into %back.sum, %back.again alpha=2", "is not the sum of it and the round's"},
           {"rounds are added to what all rounds have left", "  %out = aten.neg %back.all",
            "  %f = full value=1 : i64[]\n  %g, %h = loop %rounds.further, %f, %back.all at_most=1 donates=[1, 2] : "
            "i64[], "
            "f32[4/ep, 3]\n  %i = aten.add.Scalar %g other=1 : i64[]\n  %j = add_into %h, %h donates=[0] : f32[4/ep, "
            "3]\n"
            "  %k = store %g, %i donates=[0] : i64[]\n  %l, %m = end %k, %j donates=[0, 1] : i64[], f32[4/ep, 3]\n"
            "  %out = aten.neg %m",
            "it adds rounds to %back.all"},
           {"the sums of two gradients are exchanged", "end %round.stored_1, %dw.added, %dx.added",
            "end %round.stored_1, %dx.added, %dw.added", "is not the sum of it and the round's"},
       }) {
    CAPTURE(mutant.what);
    std::string text = ir::print(with_rounds());
    const size_t at = text.find(mutant.from);
    REQUIRE(at != std::string::npos);
    text.replace(at, std::string(mutant.from).size(), mutant.to);
    CHECK_MESSAGE(plan::check_rounds(ir::parse_or_throw(text)).find(mutant.expected) != std::string::npos,
                  plan::check_rounds(ir::parse_or_throw(text)));
  }
}

}  // namespace
}  // namespace sfsdp::passes::further_rounds_test
