// SPDX-License-Identifier: BSD-3-Clause
// Experts that are cut over ep: rows of which each rank has a range that only memory says.
#include <doctest/doctest.h>

#include <string>

#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/layout_mutants.h"

namespace sfsdp::plan::expert_layouts_test {
namespace {

// Tokens of all ranks are gathered, and each rank's experts compute those that chose them; the bucket holds a rank's experts.
const std::string kStep = testing::dedent(R"(
  graph mesh [dp_shard=2, ep=2] view local
    %flat = param cuts=["0/ep", "0/ep"] members=[w1, w2] name=flat numels=[24, 24] offsets=[0, 24] size=48 : f32[24/dp_shard]
    %x = input name=x : f32[8, 3] own(dp_shard)
    %order = input name=order : i64[8] own(dp_shard)
    %ends = input name=ends : i32[4] own(dp_shard)
    %a.all = input name=a_all : f32[8, 4] own(dp_shard)
    %bias = input name=bias : f32[4] own(dp_shard)
    %others = input name=others : i32[4] own(dp_shard)
  fwd:
    %full = all_gather %flat axis=dp_shard dim=0 : f32[48]
    %w1 = view %full offset=0 : f32[2/ep, 3, 4]
    %w2 = view %full offset=24 : f32[2/ep, 4, 3]
    %own = own_ends %ends axis=ep : i32[2/ep]
    %sorted = aten.index_select %x, %order dim=0 : f32[8, 3]
    %rows = own_rows %sorted, %ends axis=ep dim=0 : f32[8, 3] rows0(ep)
    %h = aten._grouped_mm %rows, %w1, %own, none : f32[8, 4] rows0(ep)
    %a = aten.silu %h : f32[8, 4] rows0(ep)
    %gated = aten.mul.Tensor %a, %h : f32[8, 4] rows0(ep)
    %y = aten._grouped_mm %gated, %w2, %own, none : f32[8, 3] rows0(ep)
    %spread = spread_rows %y, %ends axis=ep dim=0 : f32[8, 3] sum(ep)
    %back = aten.index_select %spread, %order dim=0 : f32[8, 3] sum(ep)
    %part = reduce_scatter %back axis=ep dim=0 : f32[4/ep, 3]
    %all = all_gather %part axis=ep dim=0 : f32[8, 3]
  bwd:
    %dy = own_rows %all, %ends axis=ep dim=0 : f32[8, 3] rows0(ep)
    %at = aten.t %gated : f32[4, 8]{1, 4} rows1(ep)
    %dw2 = aten._grouped_mm %at, %dy, %own, none : f32[2/ep, 4, 3]
    %rt = aten.t %rows : f32[3, 8]{1, 3} rows1(ep)
    %dw1 = aten._grouped_mm %rt, %a, %own, none : f32[2/ep, 3, 4]
    %packed = pack [%dw1, %dw2] offsets=[0, 24] : f32[48]
    %rs = reduce_scatter %packed axis=dp_shard dim=0 : f32[24]
    %zeros = aten.new_zeros %y size=[8, 3] : f32[8, 3]
    %dx = aten.index_add %zeros, %order, %spread dim=0 : f32[8, 3] sum(ep)
    %dx.sum = all_reduce %dx axis=ep : f32[8, 3]
  clip:
    %g = gradient %rs param=flat : f32[24]
    %squares = sum_squares [%g] axis=[dp_shard, ep] boxed=[true] boxes=2 numels=[24, 24] offsets=[0, 24] replicated=[false] segments=[2] : f64[2] sum(ep)
    %squares.all = all_reduce %squares axis=[dp_shard, ep] : f64[2]
    %norm = grad_norm %squares.all : f64[]
    %bad = non_finite %norm : f32[]
  opt:
    %flat.new = sgd %flat, none, %g, %bad donates=[0] momentum=0.0 weight_decay=0.1 : f32[24/dp_shard]
    return %norm, %all, %dx.sum
    carry %flat = %flat.new
)");

TEST_CASE("verify_layouts: experts of a rank, and what breaks them") {
  testing::expect_refused(
      kStep,
      {
          {"all rows by a rank's experts", "%h = aten._grouped_mm %rows,", "%h = aten._grouped_mm %sorted,",
           "operand 0 is whole"},
          {"a rank's rows by the ends of all", "%h = aten._grouped_mm %rows, %w1, %own",
           "%h = aten._grouped_mm %rows, %w1, %ends", "operand 0 is a rank's rows where the op reads others"},
          {"a rank's rows by other offsets", "%rows = own_rows %sorted, %ends", "%rows = own_rows %sorted, %others",
           "operand 0 is a rank's rows, in dimension 0 by others"},
          {"other ends within a rank's rows", "%own = own_ends %ends", "%own = own_ends %others",
           "operand 0 is a rank's rows, in dimension 0 by others"},
          {"rows go back to other places", "%spread = spread_rows %y, %ends", "%spread = spread_rows %y, %others",
           "by these offsets"},
          {"rows stay in front", "%back = aten.index_select %spread, %order", "%back = aten.index_select %y, %order",
           "a rank's rows where the op reads others"},
          {"rows that are no rows", "%spread = spread_rows %y,", "%spread = spread_rows %x,",
           "spread_rows of what is whole"},
          {"rows of rows", "%rows = own_rows %sorted,",
           "%r = own_rows %sorted, %ends axis=ep dim=0 : f32[8, 3] rows0(ep)\n  %rows = own_rows %r,",
           "own_rows of what is a rank's rows"},
          {"another rank's rows in one product", "%gated = aten.mul.Tensor %a, %h",
           "%q = own_rows %a.all, %others axis=ep dim=0 : f32[8, 4] rows0(ep)\n  %gated = aten.mul.Tensor %a, %q",
           "operand 1 is a rank's rows, in dimension 0 where others are a rank's rows"},
          {"a rank's rows beside all", "%gated = aten.mul.Tensor %a, %h", "%gated = aten.mul.Tensor %a, %a.all",
           "operand 1 is whole where others are a rank's rows"},
          {"a sum over a rank's rows", "return %norm,",
           "%s = aten.sum.dim_IntList %h dim=[0] : f32[4] sum(ep)\n  return %norm,", "where the op reads others"},
          {"rows that are joined", "return %norm,", "%v = view %h : f32[32] rows0(ep)\n  return %norm,",
           "joined or taken apart"},
          {"the step returns a rank's rows", "return %norm,", "return %y, %norm,",
           "which is a rank's rows, in dimension 0"},
          {"a type that says whole", "%a = aten.silu %h : f32[8, 4] rows0(ep)", "%a = aten.silu %h : f32[8, 4]",
           "its type says whole"},
          {"a type that says another dimension", "%at = aten.t %gated : f32[4, 8]{1, 4} rows1(ep)",
           "%at = aten.t %gated : f32[4, 8]{1, 4} rows0(ep)", "its type says a rank's rows, in dimension 0"},
          {"a gradient of all rows by a rank's", "%dw2 = aten._grouped_mm %at, %dy,",
           "%dw2 = aten._grouped_mm %at, %all,", "operand 1 is whole"},
          {"rows are summed as they lie", "%back = aten.index_select %spread, %order dim=0 : f32[8, 3] sum(ep)",
           "%back = all_reduce %y axis=ep : f32[8, 3]\n  %b = aten.index_select %spread, %order dim=0 : f32[8, 3] "
           "sum(ep)",
           "all_reduce of what is a rank's rows"},
          {"experts' gradients are summed over ep", "%rs = reduce_scatter %packed axis=dp_shard",
           "%rs = reduce_scatter %packed axis=ep", "reduce_scatter of what is a buffer of parts"},
          {"the norm counts a rank's experts once", "replicated=[false]", "replicated=[true]",
           "sum 0 is of what is cut in dimension 0, and counts once"},
          {"the norm takes a rank's experts for a part of all", "boxed=[true]", "boxed=[false]",
           "operand 0 is a buffer of parts, and not boxed"},
          {"the norm takes as many boxes as there are ranks", "boxes=2", "boxes=4", "expected boxes=2"},
          {"the norm numbers ranks otherwise", "axis=[dp_shard, ep] boxed", "axis=[ep, dp_shard] boxed",
           "ep innermost of what shares out parameters"},
          {"rows of all ranks' groups", "own_rows %sorted, %ends axis=ep",
           "own_rows %sorted, %ends axis=[dp_shard, ep]", "a rank's rows over several axes"},
          {"rows of other ranges are added up", "%a = aten.silu %h",
           "%hh = all_reduce %h axis=dp_shard : f32[8, 4] rows0(ep)\n  %a = aten.silu %hh",
           "all_reduce of what is a rank's rows"},
          {"a bias beside a rank's groups", "%w1, %own, none : f32[8, 4]", "%w1, %own, %bias : f32[8, 4]",
           "a rank's groups with a bias"},
          {"a member that nobody cuts", "cuts=[\"0/ep\", \"0/ep\"]", "cuts=[\"0/ep\", \"\"]",
           "%w2 is whole, its type says cut in dimension 0"},
      });
}

// A rank's tokens go to the ranks whose experts they chose, and what these give comes back; backward the other way round.
const std::string kExchange = testing::dedent(R"(
  graph mesh [dp_shard=2, ep=2] view local
    %w = param box=ep name=w : f32[2/ep, 3, 3]
    %x = input name=x : f32[8, 3] own(dp_shard)
    %order = input name=order : i64[8] own(dp_shard)
    %place = input name=place : i64[8] own(dp_shard)
    %ends = input name=ends : i32[4] own(dp_shard)
    %others = input name=others : i32[4] own(dp_shard)
  fwd:
    %t = own_part %x axis=ep dim=0 : f32[4/ep, 3]
    %order.part = own_part %order axis=ep dim=0 : i64[4/ep]
    %own = own_ends %ends axis=ep : i32[2/ep]
    %own.others = own_ends %others axis=ep : i32[2/ep]
    %rows = all_to_all_v %t, %order, %ends axis=ep rows=8 to=rows : f32[8, 3] rows0(ep)
    %y = aten._grouped_mm %rows, %w, %own, none : f32[8, 3] rows0(ep)
    %back = all_to_all_v %y, %place, %ends axis=ep rows=8 to=parts : f32[4/ep, 3]
  bwd:
    %dy = all_to_all_v %back, %place, %ends adds=true axis=ep rows=8 to=rows : f32[8, 3] rows0(ep)
    %dx = all_to_all_v %dy, %order, %ends adds=true axis=ep rows=8 to=parts : f32[4/ep, 3]
    %dx.all = all_gather %dx axis=ep dim=0 : f32[8, 3]
    return %dx.all
)");

TEST_CASE("verify_layouts: rows that are exchanged, and what breaks them") {
  testing::expect_refused(
      kExchange,
      {
          {"a whole is sent as if it were parts", "%rows = all_to_all_v %t, %order, %ends axis=ep rows=8",
           "%rows = all_to_all_v %x, %order, %ends axis=ep rows=16", "rows of what is whole are sent"},
          {"an index of a part", "%back = all_to_all_v %y, %place,",
           "%pp = aten.cat [%order.part, %order.part] dim=0 : i64[8/ep:2]\n  %back = all_to_all_v %y, %pp,",
           "the index is cut in dimension 0, in 2 blocks"},
          {"rows come by one index for each rank",
           "%dx = all_to_all_v %dy, %order, %ends adds=true axis=ep rows=8 to=parts : f32[4/ep, 3]",
           "%dx = all_to_all_v %dy, %order.part, %ends axis=ep rows=8 to=parts : f32[2/ep, 3]",
           "the index is cut in dimension 0"},
          {"rows go to the groups of others", "%rows = all_to_all_v %t, %order, %ends",
           "%rows = all_to_all_v %t, %order, %others", "operand 0 is a rank's rows, in dimension 0 by others"},
          {"rows are sent back by the offsets of others", "%back = all_to_all_v %y, %place, %ends",
           "%back = all_to_all_v %y, %place, %others", "a rank's rows, in dimension 0 by others are sent"},
          {"rows of others are added", "%dx = all_to_all_v %dy, %order, %ends",
           "%dx = all_to_all_v %dy, %order, %others", "a rank's rows, in dimension 0 by others are sent"},
          {"parts are sent back as if they were rows", "%back = all_to_all_v %y, %place, %ends axis=ep rows=8 to=parts",
           "%back = all_to_all_v %x, %place, %ends axis=ep rows=8 to=parts", "rows of what is whole are sent"},
          {"a part is sent on", "%dx.all = all_gather %dx axis=ep dim=0 : f32[8, 3]",
           "%dx.all = view %dy : f32[8, 3] rows0(ep)", "which is a rank's rows"},
          {"a product by other groups than were sent", "%y = aten._grouped_mm %rows, %w, %own,",
           "%y = aten._grouped_mm %rows, %w, %own.others,", "operand 0 is a rank's rows, in dimension 0 by others"},
          {"rows go to ranks of other samples", "%rows = all_to_all_v %t, %order, %ends axis=ep",
           "%rows = all_to_all_v %t, %order, %ends axis=dp_shard", "are sent by their numbers"},
          {"rows go to ranks of two axes", "%dy = all_to_all_v %back, %place, %ends adds=true axis=ep rows=8",
           "%dy = all_to_all_v %back, %place, %ends adds=true axis=[dp_shard, ep] rows=8", "several axes"},
          {"a type that says whole", "to=rows : f32[8, 3] rows0(ep)\n  %y", "to=rows : f32[8, 3]\n  %y",
           "its type says whole"},
          {"what is left out is taken for parts",
           "to=parts : f32[4/ep, 3]\nbwd:", "to=parts : f32[4, 3]\nbwd:", "its type says whole"},
      });
}

// A rank has two of four experts, and half of each one's width.
const std::string kOfWidth = testing::dedent(R"(
  graph mesh [dp_shard=2, ep=2, tp=2] view local
    %flat = param cuts=["0/ep,2/tp", "0/ep,1/tp"] members=[w1, w2] name=flat numels=[24, 24] offsets=[0, 24] size=48 : f32[24/dp_shard]
    %x = input name=x : f32[8, 3] own(dp_shard)
    %order = input name=order : i64[8] own(dp_shard)
    %ends = input name=ends : i32[4] own(dp_shard)
  fwd:
    %full = all_gather %flat axis=dp_shard dim=0 : f32[48]
    %w1 = view %full offset=0 : f32[2/ep, 3, 4/tp]
    %w2 = view %full offset=24 : f32[2/ep, 4/tp, 3]
    %own = own_ends %ends axis=ep : i32[2/ep]
    %t = own_part %x axis=ep dim=0 : f32[4/ep, 3]
    %rows = all_to_all_v %t, %order, %ends axis=ep rows=8 to=rows : f32[8, 3] rows0(ep)
    %h = aten._grouped_mm %rows, %w1, %own, none : f32[8, 4/tp] rows0(ep)
    %y = aten._grouped_mm %h, %w2, %own, none : f32[8, 3] rows0(ep) sum(tp)
    %back = all_to_all_v %y, %order, %ends axis=ep rows=8 to=parts : f32[4/ep, 3] sum(tp)
    %out = all_reduce %back axis=tp : f32[4/ep, 3]
    %all = all_gather %out axis=ep dim=0 : f32[8, 3]
  bwd:
    %dy = all_to_all_v %out, %order, %ends adds=true axis=ep rows=8 to=rows : f32[8, 3] rows0(ep)
    %ht = aten.t %h : f32[4/tp, 8]{1, 4} rows1(ep)
    %dw2 = aten._grouped_mm %ht, %dy, %own, none : f32[2/ep, 4/tp, 3]
    %rt = aten.t %rows : f32[3, 8]{1, 3} rows1(ep)
    %dw1 = aten._grouped_mm %rt, %h, %own, none : f32[2/ep, 3, 4/tp]
    %packed = pack [%dw1, %dw2] offsets=[0, 24] : f32[48]
    %rs = reduce_scatter %packed axis=dp_shard dim=0 : f32[24]
  clip:
    %g = gradient %rs param=flat : f32[24]
    %squares = sum_squares [%g] axis=[dp_shard, ep, tp] boxed=[true] boxes=2 counted_once=[false, false] inner=2 numels=[24, 24] offsets=[0, 24] replicated=[false] segments=[2] : f64[2] sum(ep, tp)
    %squares.all = all_reduce %squares axis=[dp_shard, ep, tp] : f64[2]
    %norm = grad_norm %squares.all : f64[]
    %bad = non_finite %norm : f32[]
  opt:
    %flat.new = sgd %flat, none, %g, %bad donates=[0] momentum=0.0 weight_decay=0.1 : f32[24/dp_shard]
    return %norm, %all
    carry %flat = %flat.new
)");

TEST_CASE("verify_layouts: experts that ep and tp cut, and what breaks them") {
  testing::expect_refused(
      kOfWidth, {
                    {"a member that tp does not cut", R"(["0/ep,2/tp", "0/ep,1/tp"])", R"(["0/ep,2/tp", "0/ep"])",
                     "%w2 is whole, its type says cut in dimension 1"},
                    {"a member that ep does not cut", R"(["0/ep,2/tp", "0/ep,1/tp"])", R"(["2/tp", "0/ep,1/tp"])",
                     "%w1 is whole, its type says cut in dimension 0"},
                    {"a member that tp cuts elsewhere", R"(["0/ep,2/tp", "0/ep,1/tp"])",
                     R"(["0/ep,1/tp", "0/ep,1/tp"])", "its type says cut in dimension 2"},
                    {"axes that are exchanged", R"(["0/ep,2/tp", "0/ep,1/tp"])", R"(["0/tp,2/ep", "0/ep,1/tp"])",
                     "%w1 is cut in dimension 2, its type says cut in dimension 0"},
                    {"parts of the width are not added up", "%out = all_reduce %back axis=tp : f32[4/ep, 3]",
                     "%out = view %back : f32[4/ep, 3]", "is a summand"},
                    {"they are added up over ep", "%out = all_reduce %back axis=tp : f32[4/ep, 3]",
                     "%out = all_reduce %back axis=ep : f32[4/ep, 3]", "all_reduce of what is cut"},
                    {"the norm counts a part of the width once", "counted_once=[false, false]",
                     "counted_once=[false, true]", "sum 1 is of what is cut in dimension 1, and counts once"},
                    {"the norm leaves out the ranks of tp", "axis=[dp_shard, ep, tp] boxed",
                     "axis=[dp_shard, ep] boxed", "expected axis= to name tp"},
                    {"a type that says no sum", "rows=8 to=parts : f32[4/ep, 3] sum(tp)",
                     "rows=8 to=parts : f32[4/ep, 3]", "its type says whole"},
                });
}

// Room for three rows of a rank at once, and a loop for what is more.
const std::string kRounds = testing::dedent(R"(
  graph mesh [dp_shard=2, ep=2] view local
    %w = param box=ep name=w : f32[2/ep, 3, 3]
    %x = input name=x : f32[8, 3] own(dp_shard)
    %order = input name=order : i64[8] own(dp_shard)
    %ends = input name=ends : i32[4] own(dp_shard)
    %mine = input name=mine : i64[2] own(dp_shard)
  fwd:
    %t = own_part %x axis=ep dim=0 : f32[4/ep, 3]
    %part = own_part %mine axis=ep dim=0 : i64[1/ep]
    %here = aten.sum %part : i64[] sum(ep)
    %own = own_ends %ends axis=ep room=3 : i32[2/ep]
    %all = own_ends %ends axis=ep : i32[2/ep]
    %rows = all_to_all_v %t, %order, %ends axis=ep room=3 rows=8 to=rows : f32[3, 3] rows0(ep)
    %y = aten._grouped_mm %rows, %w, %own, none : f32[3, 3] rows0(ep)
    %back = all_to_all_v %y, %order, %ends axis=ep room=3 rows=8 to=parts : f32[4/ep, 3]
    %more = further_rounds %ends axis=ep room=3 : i64[]
    %k0 = full value=1 : i64[]
    %k, %sum = loop %more, %k0, %back at_most=2 donates=[1, 2] : i64[], f32[4/ep, 3]
    %own.k = own_ends %ends, %k axis=ep room=3 : i32[2/ep]
    %rows.k = all_to_all_v %t, %order, %ends, %k axis=ep room=3 rows=8 to=rows : f32[3, 3] rows0(ep)
    %y.k = aten._grouped_mm %rows.k, %w, %own.k, none : f32[3, 3] rows0(ep)
    %back.k = all_to_all_v %y.k, %order, %ends, %k axis=ep room=3 rows=8 to=parts : f32[4/ep, 3]
    %added = add_into %sum, %back.k donates=[0] : f32[4/ep, 3]
    %k1 = aten.add.Scalar %k other=1 : i64[]
    %k2 = store %k, %k1 donates=[0] : i64[]
    %rounds, %out = end %k2, %added donates=[0, 1] : i64[], f32[4/ep, 3]
    %out.all = all_gather %out axis=ep dim=0 : f32[8, 3]
    return %out.all
)");

TEST_CASE("verify_layouts: rounds of rows, and what breaks them") {
  testing::expect_refused(
      kRounds,
      {
          {"ends of all rows for those of a round", "%y = aten._grouped_mm %rows, %w, %own,",
           "%y = aten._grouped_mm %rows, %w, %all,", "operand 0 is a rank's rows, in dimension 0 by others"},
          {"ends of another round", "%y.k = aten._grouped_mm %rows.k, %w, %own.k,",
           "%y.k = aten._grouped_mm %rows.k, %w, %own,", "operand 0 is a rank's rows, in dimension 0 by others"},
          {"rows of another round go back", "%back.k = all_to_all_v %y.k, %order, %ends, %k axis",
           "%back.k = all_to_all_v %y.k, %order, %ends axis", "a rank's rows, in dimension 0 by others are sent"},
          {"rows of a round go back as if they were all",
           "%back = all_to_all_v %y, %order, %ends axis=ep room=3 rows=8",
           "%back = all_to_all_v %y, %order, %ends axis=ep rows=3", "a rank's rows, in dimension 0 by others are sent"},
          {"ends within another room", "%own = own_ends %ends axis=ep room=3", "%own = own_ends %ends axis=ep room=2",
           "operand 0 is a rank's rows, in dimension 0 by others"},
          {"a number of rounds for each rank", "loop %more, %k0,", "loop %here, %k0,",
           "the number of trips is a summand"},
          {"a trip leaves a rank's rows", "end %k2, %added", "end %k2, %y.k",
           "expected it cut in dimension 0, as it began"},
          {"a round for each rank", "%rows.k = all_to_all_v %t, %order, %ends, %k axis",
           "%rows.k = all_to_all_v %t, %order, %ends, %here axis", "the round is a summand"},
      });
}

}  // namespace
}  // namespace sfsdp::plan::expert_layouts_test
