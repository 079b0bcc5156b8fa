// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/verify/layouts.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/testing/expect_pass.h"
#include "sfsdp/testing/layout_mutants.h"

namespace sfsdp::plan::layouts_test {
namespace {

// w2(w1(x)²) in the buckets of a rank: members that are cut and one that is whole.
const std::string kStep = testing::dedent(R"(
  graph mesh [dp_shard=2, tp=2] view local
    %flat = param cuts=["0/tp", "1/tp", ""] members=[w1, w2, b2] name=flat numels=[16, 16, 4] offsets=[0, 16, 32] size=36 : f32[18/dp_shard]
    %flat.m = state name=flat.m : f32[18/dp_shard]
    %step = state name=step : f32[]
    %x = input name=x : f32[6, 4] own(dp_shard)
  fwd:
    %full.start = all_gather.start %flat axis=dp_shard dim=0 : async f32[36]
    %full = wait %full.start : f32[36]
    %w1 = view %full offset=0 : f32[4/tp, 4]
    %w2 = view %full offset=16 : f32[4, 4/tp]
    %b2 = view %full offset=32 : f32[4]
    %h = linear %x, %w1 : f32[6, 4/tp]
    %r = aten.mul.Tensor %h, %h : f32[6, 4/tp]
    %y0 = linear %r, %w2 : f32[6, 4] sum(tp)
    %y1 = all_reduce %y0 axis=tp : f32[6, 4]
    %y = aten.add.Tensor %y1, %b2 : f32[6, 4]
  loss:
    %squares = aten.mul.Tensor %y, %y : f32[6, 4]
    %loss = aten.sum %squares : f32[]
  bwd:
    %db2 = aten.sum.dim_IntList %y dim=[0] : f32[4]
    %dr = linear_dx %y, %w2 : f32[6, 4/tp]
    %dw2 = linear_dw %y, %r : f32[4, 4/tp]
    %dh = aten.mul.Tensor %dr, %h : f32[6, 4/tp]
    %dw1 = linear_dw %dh, %x : f32[4/tp, 4]
    %packed = pack [%dw1, %dw2, %db2] offsets=[0, 16, 32] : f32[36]
    %rs = reduce_scatter %packed axis=dp_shard dim=0 : f32[18]
  clip:
    %loss.all = all_reduce %loss axis=dp_shard : f32[]
    %g = gradient %rs param=flat : f32[18]
    %squares.g = sum_squares [%g] axis=[dp_shard, tp] counted_once=[false, false, true] inner=2 numels=[16, 16, 4] offsets=[0, 16, 32] replicated=[false] segments=[3] : f64[3] sum(tp)
    %squares.all = all_reduce %squares.g axis=[dp_shard, tp] : f64[3]
    %norm = grad_norm %squares.all : f64[]
    %bad = non_finite %norm : f32[]
  opt:
    %flat.new, %flat.m.new = sgd %flat, %flat.m, %g, %bad donates=[0, 1] momentum=0.9 weight_decay=0.1 : f32[18/dp_shard], f32[18/dp_shard]
    return %loss.all, %norm
    carry %flat = %flat.new
    carry %flat.m = %flat.m.new
)");

TEST_CASE("verify_layouts: a step in buckets is sound, and each change that breaks it is found, with the op") {
  testing::expect_refused(
      kStep,
      {
          {"a sum is dropped", "%y = aten.add.Tensor %y1, %b2", "%y = aten.add.Tensor %y0, %b2",
           "a summand is taken for the sum"},
          {"a row is written into a part of rows", "%h = linear %x, %w1 :",
           "%row = aten.unsqueeze %b2 dim=0 : f32[1, 4]\n"
           "    %w1.s = aten.slice_scatter %w1, %row dim=0 end=2 start=1 : f32[4/tp, 4]\n    %h = linear %x, %w1.s :",
           "operand 1 is whole where another one is cut"},
          {"a row is added at an index of rows that are cut", "%h = linear %x, %w1 :",
           "%row = aten.unsqueeze %b2 dim=0 : f32[1, 4]\n    %i = full value=1 : i64[1]\n"
           "    %w1.s = aten.index_add %w1, %i, %row dim=0 : f32[4/tp, 4]\n    %h = linear %x, %w1.s :",
           "operand 1 is whole where another one is cut"},
          {"a row is put into the first of rows that are cut", "%h = linear %x, %w1 :",
           "%row = aten.unsqueeze %b2 dim=0 : f32[1, 4]\n    %i = full value=1 : i64[1, 4]\n"
           "    %w1.s = aten.scatter.src %w1, %i, %row dim=1 : f32[4/tp, 4]\n    %h = linear %x, %w1.s :",
           "no row says how aten.scatter.src may be cut"},
          {"a sum is made twice", "%dr = linear_dx %y, %w2",
           "%y2 = all_reduce %y axis=tp : f32[6, 4]\n  %dr = linear_dx %y2, %w2", "all_reduce of what is whole"},
          {"a sum over the wrong axis", "%y1 = all_reduce %y0 axis=tp", "%y1 = all_reduce %y0 axis=dp_shard",
           "%y1 is a summand, its type says whole"},
          {"the largest in place of the sum", "%y1 = all_reduce %y0 axis=tp", "%y1 = all_reduce %y0 axis=tp op=max",
           "all_reduce of what is a summand"},
          {"a part is gathered that is a summand", "%y1 = all_reduce %y0 axis=tp : f32[6, 4]",
           "%y1 = all_gather %y0 axis=tp dim=0 : f32[12, 4]", "all_gather of what is a summand"},
          {"a member is taken for another", "%w2 = view %full offset=16", "%w2 = view %full offset=0",
           "%w2 is cut in dimension 0, its type says cut in dimension 1"},
          {"a view over the border of members", "%b2 = view %full offset=32", "%b2 = view %full offset=31",
           "no member of the buffer lies there"},
          {"a type that says whole", "%h = linear %x, %w1 : f32[6, 4/tp]", "%h = linear %x, %w1 : f32[6, 4]",
           "%h is cut in dimension 1, its type says whole"},
          {"a type that says cut", "%db2 = aten.sum.dim_IntList %y dim=[0] : f32[4]",
           "%db2 = aten.sum.dim_IntList %y dim=[0] : f32[4/tp]", "%db2 is whole, its type says cut in dimension 0"},
          {"a bias that each rank adds", "%y0 = linear %r, %w2 :", "%y0 = linear %r, %w2, %b2 :",
           "what is cut is added up, in what the op is not linear in"},
          {"gradients that are packed in another order", "%packed = pack [%dw1, %dw2, %db2]",
           "%packed = pack [%dw2, %dw1, %db2]", "expected it a buffer of parts, as the parameter"},
          {"the norm counts a cut member once", "counted_once=[false, false, true]", "counted_once=[true, false, true]",
           "sum 0 is of what is cut in dimension 0, and counts once"},
          {"the norm counts a whole member on each rank", "counted_once=[false, false, true]",
           "counted_once=[false, false, false]", "sum 2 is of what is whole"},
          {"the norm is not summed over tp", "%squares.all = all_reduce %squares.g axis=[dp_shard, tp]",
           "%squares.all = all_reduce %squares.g axis=dp_shard", "%squares.all is a summand, its type says whole"},
          {"the whole buffer is read", "%h = linear %x, %w1", "%all = aten.neg %full : f32[36]\n  %h = linear %x, %w1",
           "a buffer of parts is read as if it were one tensor"},
          {"a rank's own batch", "%x = input name=x : f32[6, 4] own(dp_shard)",
           "%x = input name=x : f32[6, 4] own(dp_shard, tp)", "each rank has its own"},
          {"a dimension that must be whole", "%squares = aten.mul.Tensor %y, %y : f32[6, 4]",
           "%soft = aten._softmax %h dim=1 half_to_float=false : f32[6, 4/tp]\n  %squares = aten.mul.Tensor %y, %y : "
           "f32[6, 4]",
           "is a part where the op reads the whole dimension"},
          {"a place in the whole", "%squares = aten.mul.Tensor %y, %y : f32[6, 4]",
           "%low = aten.tril %h : f32[6, 4/tp]\n  %squares = aten.mul.Tensor %y, %y : f32[6, 4]",
           "depends on its place"},
          {"what is returned", "return %loss.all, %norm", "return %loss.all, %norm, %h",
           "the step returns %h, which is cut in dimension 1"},
      });
}

// A mixture whose experts are cut in their width: rows of all experts lie one after the other, %ends says where.
const std::string kExperts = testing::dedent(R"(
  graph mesh [tp=2] view local
    %w1 = param name=w1 : f32[4, 6, 4/tp]
    %w2 = param name=w2 : f32[4, 4/tp, 6]
    %x = input name=x : f32[8, 6]
    %order = input name=order : i64[8]
    %ends = input name=ends : i32[4]
  fwd:
    %rows = aten.index_select %x, %order dim=0 : f32[8, 6]
    %h = aten._grouped_mm %rows, %w1, %ends, none : f32[8, 4/tp]
    %a = aten.silu %h : f32[8, 4/tp]
    %y = aten._grouped_mm %a, %w2, %ends, none : f32[8, 6] sum(tp)
    %y.back = aten.index_select %y, %order dim=0 : f32[8, 6] sum(tp)
    %y.sum = all_reduce %y.back axis=tp : f32[8, 6]
  bwd:
    %at = aten.t %a : f32[4/tp, 8]
    %dw2 = aten._grouped_mm %at, %y.sum, %ends, none : f32[4, 4/tp, 6]
    %zeros = aten.new_zeros %y size=[8, 6] : f32[8, 6]
    %dx = aten.index_add %zeros, %order, %y dim=0 : f32[8, 6] sum(tp)
    %dx.sum = all_reduce %dx axis=tp : f32[8, 6]
    return %y.sum, %dx.sum
    carry %w2 = %dw2
)");

TEST_CASE("verify_layouts: experts that are cut in their width, and what breaks them") {
  testing::expect_refused(
      kExperts,
      {
          {"a sum is dropped", "return %y.sum", "return %y.back", "which is a summand"},
          {"what every rank has is added by each", "aten.index_add %zeros", "aten.index_add %x",
           "a summand is taken for the sum"},
          {"zeros of a part", "aten.new_zeros %y size=[8, 6] : f32[8, 6]",
           "aten.new_zeros %y size=[8, 6] : f32[8/tp, 6]", "%zeros is whole, its type says cut in dimension 0"},
          {"what is not linear before the sum", "%y.sum = all_reduce %y.back",
           "%s = aten.silu %y.back : f32[8, 6] sum(tp)\n  %y.sum = all_reduce %s", "a summand is taken for the sum"},
          {"ends of a rank's experts", "%h = aten._grouped_mm %rows, %w1, %ends",
           "%e = own_part %ends axis=tp dim=0 : i32[4/tp]\n  %h = aten._grouped_mm %rows, %w1, %e",
           "operand 2 is cut in another factor"},
          {"a rank's rows, ends of all", "%h = aten._grouped_mm %rows, %w1, %ends, none : f32[8, 4/tp]",
           "%r = own_part %rows axis=tp dim=0 : f32[8/tp, 6]\n  %h = aten._grouped_mm %r, %w1, %ends, none : "
           "f32[8/tp, "
           "4]",
           "operand 0 is a part where the op reads the whole dimension"},
          {"a gradient of a rank's rows", "%dw2 = aten._grouped_mm %at, %y.sum, %ends",
           "%some = own_part %y.sum axis=tp dim=0 : f32[8/tp, 6]\n  %dw2 = aten._grouped_mm %at, %some, %ends",
           "operand 1 is cut in another factor"},
          {"rows picked of a part",
           "%y.back = aten.index_select %y, %order dim=0 : f32[8, 6] sum(tp)\n  %y.sum = all_reduce %y.back axis=tp",
           "%y.part = reduce_scatter %y axis=tp dim=0 : f32[8/tp, 6]\n  %y.back = aten.index_select %y.part, %order "
           "dim=0 : f32[8/tp, 6]\n  %y.sum = all_gather %y.back axis=tp dim=0",
           "operand 0 is a part where the op reads the whole dimension"},
          {"an order of summands", "%y.back = aten.index_select %y, %order",
           "%o = as_summand %order axis=tp : i64[8] sum(tp)\n  %y.back = aten.index_select %y, %o",
           "a summand is taken for the sum"},
      });
}

// What is left of one head, of one sample, of rows counted by other dimensions: sizes of 1 that are parts.
TEST_CASE("verify_layouts: a part of one index is a part, not a dimension that is broadcast") {
  const auto verdict = [](std::string_view ops) {
    return verify_layouts(ir::parse_or_throw(testing::dedent(concat("graph mesh [tp=2] view local\n", ops))));
  };
  CHECK(verdict(R"(
      %x = param name=x : f32[1, 6, 1/tp, 4]
      %t = input name=t : f32[6, 1, 2]
    fwd:
      %y = rope %x, %t, %t : f32[1, 6, 1/tp, 4]
      %p = aten.permute %y dims=[2, 0, 1, 3] : f32[1/tp, 1, 6, 4]
      %z = all_gather %p axis=tp dim=0 : f32[2, 1, 6, 4]
      return %z
  )") == "");
  CHECK(verdict(R"(
      %g = param name=g : f32[6/tp, 5]
      %x = param name=x : f32[1/tp, 6, 4]
    fwd:
      %w = linear_dw %g, %x : f32[5, 4] sum(tp)
      %all = all_reduce %w axis=tp : f32[5, 4]
      return %all
  )") == "");
  CHECK(verdict(R"(
      %g = param name=g : f32[6/tp, 5]
      %x = param name=x : f32[1, 6, 4]
    fwd:
      %w = linear_dw %g, %x : f32[5, 4] sum(tp)
      %all = all_reduce %w axis=tp : f32[5, 4]
      return %all
  )") != "");
}

// One token a rank: rows of [1/ep, 5] beside [1/ep, 1, 4], which differ in nothing but the axis.
TEST_CASE("verify_layouts: rows of one token a rank are added up, counted by one dimension or by two") {
  const std::string sound = testing::dedent(R"(
    graph mesh [ep=2] view local
      %g = param name=g : f32[1/ep, 5]
      %x = param name=x : f32[1/ep, 1, 4]
      %u = param name=u : f32[1, 1, 4]
      %k = param name=k : f32[1/ep, 1]
    fwd:
      %w = linear_dw %g, %x : f32[5, 4] sum(ep)
      %all = all_reduce %w axis=ep : f32[5, 4]
      %y = aten.neg %k : f32[1/ep, 1]
      %ks = all_gather %y axis=ep dim=0 : f32[2, 1]
      return %all, %ks
  )");
  testing::expect_refused(
      sound,
      {
          {"what is added up is taken for the sum", "%all = all_reduce %w axis=ep", "%all = aten.neg %w",
           "%all is a summand, its type says whole"},
          {"rows of a rank meet summands", "%w = linear_dw %g, %x",
           "%s = as_summand %u axis=ep : f32[1, 1, 4] sum(ep)\n  %w = linear_dw %g, %s", "what is cut meets a summand"},
          {"a row beside a column is broadcast", "%y = aten.neg %k : f32[1/ep, 1]",
           "%v = aten.view %k size=[1] : f32[1/ep]\n  %y = aten.add.Tensor %k, %v : f32[1/ep, 1]",
           "cut in another factor"},
      });
}

// Two rows over two ranks, beside tensors of one row: %b and %scale are broadcast to the rows, all else has to have as many.
TEST_CASE("verify_layouts: what has one row is no rank's one row, and is broadcast only where the op broadcasts it") {
  const std::string sound = testing::dedent(R"(
    graph mesh [tp=2] view local
      %g = param name=g : f32[1/tp, 5]
      %x = param name=x : f32[1/tp, 4]
      %one = param name=one : f32[1, 4]
      %w = param name=w : f32[4, 5]
      %b = param name=b : f32[1, 5]
      %scale = param name=scale : f32[1, 1]
      %q = param name=q : f32[1/tp, 1, 6, 4]
      %k = param name=k : f32[1/tp, 1, 6, 4]
      %one.k = param name=one.k : f32[1, 1, 6, 4]
      %mask = param name=mask : f32[1, 1, 6, 6]
      %batch = param name=batch : f32[1/tp, 3, 6]
      %stack = param name=stack : f32[1/tp, 6, 2]
      %one.stack = param name=one.stack : f32[1, 6, 2]
    fwd:
      %dw = linear_dw %g, %x : f32[5, 4] sum(tp)
      %dw.all = all_reduce %dw axis=tp : f32[5, 4]
      %y = aten.addmm %b, %x, %w : f32[1/tp, 5]
      %s = aten.mul.Tensor %y, %scale : f32[1/tp, 5]
      %n, %mean, %rstd = layer_norm %x, none, none eps=1e-05 normalized_shape=[4] : f32[1/tp, 4], f32[1/tp, 1], f32[1/tp, 1]
      %dn, %t0, %t1 = layer_norm_backward %x, %x, %mean, %rstd, none, none normalized_shape=[4] output_mask=[true, false, false] : f32[1/tp, 4], token, token
      %o, %lse = sdpa %q, %k, %k, %mask : f32[1/tp, 1, 6, 4], f32[1/tp, 1, 6]
      %products = aten.bmm %batch, %stack : f32[1/tp, 3, 2]
      return %dw.all
      carry %g = %s
      carry %x = %dn
  )");
  testing::expect_refused(
      sound,
      {
          {"a weight's gradient of one row", "linear_dw %g, %x", "linear_dw %g, %one", "on the sizes of all ranks"},
          {"a product of one row", "aten.addmm %b, %x, %w : f32[1/tp, 5]", "aten.addmm %g, %one, %w : f32[1/tp, 5]",
           "on the sizes of all ranks"},
          {"a norm's gradient of one row", "layer_norm_backward %x, %x", "layer_norm_backward %x, %one",
           "on the sizes of all ranks"},
          {"keys of one sample", "sdpa %q, %k, %k", "sdpa %q, %one.k, %one.k", "on the sizes of all ranks"},
          {"one matrix of a stack", "aten.bmm %batch, %stack", "aten.bmm %batch, %one.stack",
           "on the sizes of all ranks"},
      });
}

TEST_CASE("verify_layouts: an all_to_all moves a cut, from the dimension that it joins to the one that it splits") {
  const auto verdict = [](const std::string& op, const char* x) {
    return verify_layouts(ir::parse_or_throw(concat("graph mesh [dp_shard=2, tp=2] view local\n  %x = param name=x : ",
                                                    x, "\nfwd:\n  ", op, "\n  carry %x = %x\n")));
  };
  const char* moved = "%y = all_to_all %x axis=tp split=1 join=0 : f32[8, 2/tp, 3]";
  CHECK(verdict(moved, "f32[4/tp, 4, 3]") == "");
  CHECK(verdict(moved, "f32[4, 4, 3]").find("all_to_all of what is whole") != std::string::npos);
  CHECK(verdict(moved, "f32[4, 4/tp, 3]").find("all_to_all of what is cut in dimension 1") != std::string::npos);
  CHECK(verdict(moved, "f32[4, 4, 3] sum(tp)").find("all_to_all of what is a summand") != std::string::npos);
  CHECK(verdict("%y = all_to_all %x axis=tp split=1 join=0 : f32[8, 2, 3]", "f32[4/tp, 4, 3]").find("its type says") !=
        std::string::npos);
  // Over another axis: it passes what is cut elsewhere, and nothing else.
  CHECK(verdict("%y = all_to_all %x axis=dp_shard split=1 join=0 : f32[8, 2, 3/tp]", "f32[4, 4, 3/tp]") == "");
  CHECK(verdict("%y = all_to_all %x axis=dp_shard split=1 join=0 : f32[8/tp, 2, 3]", "f32[4/tp, 4, 3]")
            .find("join=0 of what is cut in dimension 0") != std::string::npos);
}

TEST_CASE("verify_layouts: a summand may be cast to a wider dtype, which loses nothing, and to no other") {
  const auto wrong_of = [](const std::string& from, const std::string& to) {
    std::string text = testing::dedent(R"(
      graph mesh [tp=2] view local
        %x = input name=x : F[3, 4]
        %w = param name=w : F[4, 2/tp]
      fwd:
        %h = own_part %x axis=tp dim=1 : F[3, 2/tp]
        %y = linear %h, %w : F[3, 4] sum(tp)
        %c = cast %y : T[3, 4] sum(tp)
        %z = all_reduce %c axis=tp : T[3, 4]
        return %z
    )");
    for (size_t at = 0; (at = text.find_first_of("FT", at)) != std::string::npos; ++at)
      if (text[at + 1] == '[') text.replace(at, 1, text[at] == 'F' ? from : to);
    return verify_layouts(ir::parse_or_throw(text));
  };
  CHECK(wrong_of("bf16", "f32") == "");
  CHECK(wrong_of("f32", "f64") == "");
  for (const auto& [from, to] : {std::pair("f32", "bf16"), std::pair("bf16", "f16"), std::pair("f32", "i64")})
    CHECK(wrong_of(from, to).find("a summand is taken for the sum") != std::string::npos);
}

}  // namespace
}  // namespace sfsdp::plan::layouts_test
