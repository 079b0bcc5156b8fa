// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/verify/own_rows_layouts.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/layout_mutants.h"

namespace sfsdp::plan::own_rows_layouts_test {
namespace {

// A head and its loss on a rank's 8 rows, of 2 samples: 5 of them, then 3.
const std::string kRows = testing::dedent(R"(
  graph mesh [dp_shard=2, cp=2] view local
    %w = param name=w : f32[4, 6]
    %x = input name=x : f32[2, 8, 6] own(dp_shard)
    %t = input name=t : i64[2, 8] own(dp_shard)
  fwd:
    %x.part = own_part %x axis=cp dim=1 : f32[2, 4/cp, 6]
    %t.part = own_part %t axis=cp dim=1 : i64[2, 4/cp]
    %h = aten.view %x.part size=[8, 6] : f32[8/cp:2, 6]
    %targets = aten.view %t.part size=[8] : i64[8/cp:2]
    %counts = aten.ne.Scalar %targets other=-100 : b1[8/cp:2]
    %ones = cast %counts : f32[8/cp:2]
    %n = aten.sum %ones : f32[] sum(cp)
    %n.sum = all_reduce %n axis=cp : f32[]
  bwd:
    %one = full value=1.0 : f32[]
    %h0 = narrow %h dim=0 length=5 start=0 : f32[5/cp, 6]
    %t0 = narrow %targets dim=0 length=5 start=0 : i64[5/cp]
    %y0 = linear %h0, %w : f32[5/cp, 4]
    %loss0, %n0, %lse0 = cross_entropy %y0, %t0 reduction=2 : f32[] sum(cp), f32[] sum(cp), f32[5/cp]
    %dy0 = cross_entropy_backward %one, %y0, %t0, %n.sum, %lse0 : f32[5/cp, 4]
    %dw0 = linear_dw %dy0, %h0 : f32[4, 6] sum(cp)
    %dh0 = linear_dx %dy0, %w : f32[5/cp, 6]
    %h1 = narrow %h dim=0 length=3 start=5 : f32[3/cp, 6]
    %t1 = narrow %targets dim=0 length=3 start=5 : i64[3/cp]
    %y1 = linear %h1, %w : f32[3/cp, 4]
    %loss1, %n1, %lse1 = cross_entropy %y1, %t1 reduction=2 : f32[] sum(cp), f32[] sum(cp), f32[3/cp]
    %dy1 = cross_entropy_backward %one, %y1, %t1, %n.sum, %lse1 : f32[3/cp, 4]
    %dw1 = linear_dw %dy1, %h1 : f32[4, 6] sum(cp)
    %dh1 = linear_dx %dy1, %w : f32[3/cp, 6]
    %loss = aten.add.Tensor %loss0, %loss1 : f32[] sum(cp)
    %dw = add_into %dw0, %dw1 donates=[0] : f32[4, 6] sum(cp)
    %dh = aten.cat [%dh0, %dh1] : f32[8/cp:2, 6]
    %dx.part = aten.view %dh size=[2, 4, 6] : f32[2, 4/cp, 6]
    %dx = all_gather %dx.part axis=cp dim=1 : f32[2, 8, 6]
    %loss.sum = all_reduce %loss axis=cp : f32[]
    %mean = div %loss.sum, %n.sum : f32[]
    %dw.sum = all_reduce %dw axis=cp : f32[4, 6]
    %w.grad = gradient %dw.sum param=w : f32[4, 6]
    return %mean, %dx
    carry %w = %w.grad
)");

TEST_CASE("verify_layouts: chunks of a rank's own rows are sound, and each change that mixes them up is found") {
  testing::expect_refused(
      kRows,
      {
          {"targets of other rows", "%t0 = narrow %targets dim=0 length=5 start=0",
           "%t0 = narrow %targets dim=0 length=5 start=1",
           "operand 0 is cut in dimension 0, in 2 blocks, the rows 0 to before 5 of a rank's 8 where another one is "
           "cut "
           "in dimension 0, in 2 blocks, the rows 1 to before 6 of a rank's 8"},
          {"a chunk is read twice, another one not", "%h1 = narrow %h dim=0 length=3 start=5",
           "%h1 = narrow %h dim=0 length=3 start=2", "the rows 2 to before 5"},
          {"log sums of another chunk", "%dy1 = cross_entropy_backward %one, %y1, %t1, %n.sum, %lse1",
           "%dy1 = cross_entropy_backward %one, %y1, %t1, %n.sum, %lse0", "the rows 0 to before 5"},
          {"a weight's gradient of one chunk's rows and another one's", "linear_dw %dy1, %h1", "linear_dw %dy1, %h0",
           "where another one is"},
          {"chunks in another order", "aten.cat [%dh0, %dh1]", "aten.cat [%dh1, %dh0]",
           "operand 0 is cut in dimension 0, in 2 blocks, the rows 5 to before 8 of a rank's 8, and stands where"},
          {"a chunk stands twice", "aten.cat [%dh0, %dh1]", "aten.cat [%dh0, %dh0]", "operand 1 is"},
          {"a chunk is left out", "aten.view %dh size=[2, 4, 6]", "aten.view %dh0 size=[2, 4, 6]",
           "%dx.part is cut in dimension 0, its type says cut in dimension 1"},
          {"all rows where a chunk is", "linear_dw %dy0, %h0", "linear_dw %dy0, %h",
           "operand 1 is cut in dimension 0, in 2 blocks where another one is"},
          {"rows that differ by rank", "%h0 = narrow %h dim=0 length=5 start=0",
           "%h0 = narrow %h dim=0 length=5 start=\"0 + 3*cp\"", "from a place that differs by rank"},
          {"the mean of a chunk", "cross_entropy %y0, %t0 reduction=2", "cross_entropy %y0, %t0",
           "what is cut is added up, in what the op is not linear in"},
          {"backward divides by a rank's tokens", "%y0, %t0, %n.sum, %lse0", "%y0, %t0, %n, %lse0",
           "what is cut meets a summand"},
          {"a rank's sum is the loss", "%mean = div %loss.sum, %n.sum", "%mean = div %loss, %n.sum",
           "a summand is taken for the sum"},
          {"one chunk's type says whole", "%y0 = linear %h0, %w : f32[5/cp, 4]", "%y0 = linear %h0, %w : f32[5, 4]",
           "its type says whole"},
      });
}

// Each rank's summand of all rows is its summands of the chunks.
const std::string kSummands = testing::dedent(R"(
  graph mesh [tp=2] view local
    %w = param name=w : f32[2/tp, 6]
    %dy0 = input name=dy0 : f32[5, 4]
    %dy1 = input name=dy1 : f32[3, 4]
  bwd:
    %a = own_part %dy0 axis=tp dim=1 : f32[5, 2/tp]
    %b = own_part %dy1 axis=tp dim=1 : f32[3, 2/tp]
    %dh0 = linear_dx %a, %w : f32[5, 6] sum(tp)
    %dh1 = linear_dx %b, %w : f32[3, 6] sum(tp)
    %dh = aten.cat [%dh0, %dh1] : f32[8, 6] sum(tp)
    %dx = all_reduce %dh axis=tp : f32[8, 6]
    return %dx
)");

TEST_CASE("verify_layouts: summands of chunks are put together as summands, and not with what is whole") {
  testing::expect_refused(kSummands, {
                                         {"one is the sum already", "%dh = aten.cat [%dh0, %dh1]",
                                          "%s = all_reduce %dh1 axis=tp : f32[3, 6]\n  %dh = aten.cat [%dh0, %s]",
                                          "a summand is taken for the sum"},
                                         {"what is put together is taken for the sum", "%dx = all_reduce %dh axis=tp",
                                          "%dx = aten.neg %dh", "%dx is a summand, its type says whole"},
                                         {"its type says whole", "aten.cat [%dh0, %dh1] : f32[8, 6] sum(tp)",
                                          "aten.cat [%dh0, %dh1] : f32[8, 6]", "%dh is a summand, its type says whole"},
                                     });
}

}  // namespace
}  // namespace sfsdp::plan::own_rows_layouts_test
