// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/access.h"

#include <doctest/doctest.h>

#include <map>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/parser.h"

namespace sfsdp::ir::access_test {
namespace {

std::string text_of(const Access& access) {
  switch (access.reads) {
    case Reads::Nothing: return "-";
    case Reads::Element: return "element";
    case Reads::Group: return concat("pair of ", access.width);
    case Reads::Row: return concat("row of ", access.width);
    case Reads::AllRows: return concat("all rows of ", access.width);
    case Reads::Whole: return "whole";
    case Reads::Others: return "others";
  }
  return "";
}

// What each result of the op is made of, operand by operand.
std::string reads_of(const std::string& op) {
  const Graph graph = parse_or_throw(concat(R"(graph mesh [] view local
  %x = param name=x : f32[6, 4]
  %t = param name=t : f32[4, 6]
  %c = param name=c : f32[2, 6, 4]
  %w = param name=w : f32[4]
  %h = param name=h : f32[2]
  %r = param name=r : f32[6, 1]
  %s = param name=s : f32[]
  %m = param name=m : f32[4, 4]
  %i = param name=i : i64[6]
  %j = param name=j : i64[2, 3]
  %j5 = param name=j5 : i64[2, 5]
  %q = param name=q : f32[2, 4, 3, 8]
  %k = param name=k : f32[2, 2, 5, 8]
fwd:
  )",
                                            op, '\n'));
  const Op& made = *graph.ops().back();
  const OpAccess access(made);
  std::string text;
  for (size_t r = 0; r < made.results().size(); ++r) {
    text += r == 0 ? "" : "; ";
    for (size_t k = 0; k < made.operands.size(); ++k)
      text += concat(k == 0 ? "" : ", ", made.operands[k] ? text_of(access.reads(k, r)) : "none");
  }
  return concat(text, access.is_by_place() ? "" : " (alone)",
                access.rows().width > 0 ? concat(" rows ", access.rows().width, " of ", access.rows().numel) : "");
}

TEST_CASE("access: element by element, and what is broadcast") {
  CHECK(reads_of("%y = aten.neg %x : f32[6, 4]") == "element");
  CHECK(reads_of("%y = aten.mul.Tensor %x, %w : f32[6, 4]") == "element, element");
  CHECK(reads_of("%y = aten.mul.Tensor %c, %r : f32[2, 6, 4]") == "element, element");
  CHECK(reads_of("%y = aten.copy %x, %s : f32[6, 4]") == "-, element");
  CHECK(reads_of("%y = aten.select_backward %x dim=0 index=1 input_sizes=[2, 6, 4] : f32[2, 6, 4]") == "element");
  CHECK(reads_of("%y, %d = dropout %x keep=0.5 stream=0 : f32[6, 4], i64[2]") == "element; -");
  CHECK(reads_of("%y = dropout_backward %x, %h keep=0.5 : f32[6, 4]") == "element, whole");
}

TEST_CASE("access: rows are the last dimensions, whichever attribute says how many") {
  CHECK(reads_of("%y, %r2 = rms_norm %x, %w dims=1 eps=0.5 : f32[6, 4], f32[6, 1]") ==
        "row of 4, element; row of 4, - rows 4 of 24");
  CHECK(reads_of("%y, %a, %b = layer_norm %c, none, none eps=0.5 normalized_shape=[6, 4] : "
                 "f32[2, 6, 4], f32[2, 1, 1], f32[2, 1, 1]") ==
        "row of 24, none, none; row of 24, none, none; row of 24, none, none rows 24 of 48");
  CHECK(reads_of("%y = aten._softmax %c dim=-1 half_to_float=false : f32[2, 6, 4]") == "row of 4 rows 4 of 48");
  CHECK(reads_of("%y = aten._softmax %c dim=1 half_to_float=false : f32[2, 6, 4]") == "others (alone)");
  CHECK(reads_of("%y = aten.sum.dim_IntList %c dim=[1, 2] : f32[2]") == "row of 24 rows 24 of 48");
  CHECK(reads_of("%y = aten.sum.dim_IntList %c dim=[2] keepdim=true : f32[2, 6, 1]") == "row of 4 rows 4 of 48");
  CHECK(reads_of("%y = aten.sum.dim_IntList %c dim=[0, 2] : f32[6]") == "others (alone)");
  CHECK(reads_of("%y = aten.cumprod %x dim=1 : f32[6, 4]") == "row of 4 rows 4 of 24");
  CHECK(reads_of("%y = aten.cumprod %x dim=0 : f32[6, 4]") == "others (alone)");
}

TEST_CASE("access: what is over all rows is complete after them, alone or beside what is made row by row") {
  CHECK(reads_of("%y = aten.sum %x : f32[]") == "all rows of 1 (alone)");
  CHECK(reads_of("%y = aten.var.correction %x dim=[]i : f32[]") == "all rows of 1 (alone)");
  CHECK(reads_of("%y, %dw = rms_norm_backward %x, %x, %w, %r, none dims=1 : f32[6, 4], f32[4]") ==
        "row of 4, row of 4, whole, element, none; all rows of 4, all rows of 4, -, all rows of 1, none rows 4 of 24");
  CHECK(reads_of("%l, %n, %e = cross_entropy %x, %i : f32[], f32[], f32[6]") ==
        "all rows of 4, all rows of 1; -, all rows of 1; row of 4, - rows 4 of 24");
  CHECK(reads_of("%l, %n, %e = cross_entropy %x, %i reduction=0 : f32[6], f32[], f32[6]") ==
        "row of 4, element; -, all rows of 1; row of 4, - rows 4 of 24");
  CHECK(reads_of("%y, %a, %b = aten.native_batch_norm %c, none, none, none, none eps=0.5 momentum=0.1 training=true : "
                 "f32[2, 6, 4], f32[6], f32[6]") ==
        "others, none, none, none, none; others, none, none, none, none; others, none, none, none, none (alone)");
}

TEST_CASE("access: pairs that are turned lie in the last dimension") {
  CHECK(reads_of("%y = rope %x, %h, %h : f32[6, 4]") == "pair of 4, element, element");
  CHECK(reads_of("%y = rope %x, %h, %h halves=true : f32[6, 4]") == "pair of 4, element, element");
  CHECK(reads_of("%y = rope %x, %w, %w halves=true : f32[6, 4]") == "pair of 4, element, element");
  CHECK(reads_of("%y = rope_inverse %x, %w, %w halves=true : f32[6, 4]") == "pair of 4, element, pair of 4");
}

TEST_CASE("access: products, attention, windows and indexes read other places") {
  CHECK(reads_of("%y = linear %x, %m, %w : f32[6, 4]") == "others, others, element (alone)");
  CHECK(reads_of("%y = aten.mm %x, %m : f32[6, 4]") == "others, others (alone)");
  CHECK(reads_of("%o, %l = sdpa %q, %k, %k : f32[2, 4, 3, 8], f32[2, 4, 3]") ==
        "others, others, others; row of 8, others, - (alone)");
  CHECK(reads_of("%o, %l = sdpa %q, %q, %q, %j documents=true is_causal=true : f32[2, 4, 3, 8], f32[2, 4, 3]") ==
        "others, others, others, others; row of 8, others, -, others (alone)");
  // of a part, 3 of 5 queries, with the documents of all
  CHECK(
      reads_of("%o, %l = sdpa %q, %k, %k, %j5 axis=a documents=true is_causal=true : f32[2, 4, 3, 8], f32[2, 4, 3]") ==
      "others, others, others, others; row of 8, others, -, others (alone)");
  CHECK(reads_of("%y = embedding %m, %i : f32[6, 4]") == "others, element (alone)");
  CHECK(reads_of("%y = aten.flip %x dims=[0] : f32[6, 4]") == "others (alone)");
  CHECK(reads_of("%y = pad %x dim=0 size=8 : f32[8, 4]") == "others (alone)");
  CHECK(reads_of("%y = aten.cat [%x, %x] dim=0 : f32[12, 4]") == "others, others (alone)");
  CHECK(reads_of("%a, %b = joined_linear_dw %x, %r, %x : f32[4, 4], f32[1, 4]") ==
        "all rows of 4, -, all rows of 4; -, all rows of 1, all rows of 4 rows 4 of 24");
}

TEST_CASE("access: an op without a row, or whose shapes no map fits, reads anything") {
  CHECK(reads_of("%y = aten.special_i0 %x : f32[6, 4]") == "others (alone)");
  CHECK(reads_of("%y = aten.mm %c, %m : f32[6, 4]") == "others, others (alone)");
}

TEST_CASE("access: which element may reach which") {
  const Graph graph = parse_or_throw(R"(graph mesh [] view local
  %x = param name=x : f32[6, 4]
  %h = param name=h : f32[2]
  %q = param name=q : f32[2, 4, 3, 8]
  %k = param name=k : f32[2, 2, 5, 8]
fwd:
  %r = rope %x, %h, %h : f32[6, 4]
  %s = aten.sum.dim_IntList %x dim=[0] keepdim=true : f32[1, 4]
  %o, %l = sdpa %q, %k, %k : f32[2, 4, 3, 8], f32[2, 4, 3]
)");
  const auto may = [&](const char* result, size_t operand, std::vector<int64_t> from, std::vector<int64_t> to) {
    const Value& value = *graph.find_value(result);
    const Op& op = *value.producer();
    return may_reach(op, *map_of(op.opcode.row()), operand, from, static_cast<size_t>(value.result_index()), to);
  };
  CHECK(may("r", 0, {3, 2}, {3, 3}));  // the other one of its pair
  CHECK_FALSE(may("r", 0, {3, 2}, {3, 1}));
  CHECK_FALSE(may("r", 0, {3, 2}, {2, 2}));
  CHECK(may("r", 1, {1}, {5, 2}));
  CHECK_FALSE(may("r", 1, {1}, {5, 1}));
  CHECK(may("s", 0, {5, 2}, {0, 2}));
  CHECK_FALSE(may("s", 0, {5, 2}, {0, 1}));
  CHECK(may("o", 1, {1, 1, 4, 7}, {1, 3, 0, 0}));  // heads 2 and 3 share keys 1
  CHECK_FALSE(may("o", 1, {1, 1, 4, 7}, {1, 1, 0, 0}));
  CHECK(may("o", 2, {1, 1, 4, 7}, {1, 3, 0, 7}));
  CHECK_FALSE(may("o", 2, {1, 1, 4, 7}, {1, 3, 0, 6}));
  CHECK_FALSE(may("l", 2, {1, 1, 4, 7}, {1, 3, 0}));
}

TEST_CASE("access: what is written wrong is said") {
  const auto wrong = [](const char* text, const char* part) {
    const std::string said = check_access_text(text);
    CHECK_MESSAGE(said.find(part) != std::string::npos, said);
  };
  CHECK(check_access_text("... !d#normalized_shape, d, d -> ... d; ... !d -> ... 1") == "");
  wrong("... d", "no ->");
  wrong("... d -> ...", "d is not in the result, and has no mark");
  wrong("... +d -> ... d", "d is in the result all the same");
  wrong("... d -> ... !d", "a mark on a result");
  wrong("..., -> ...", "an empty operand");
  wrong("... (n p -> ... n", "no )");
  wrong("... !d[dim -> ...", "no ]");
  wrong("... D -> ... D", "is no factor");
  wrong("... p=1 -> ... p", "no size");
  wrong("... d[dim], d#dim -> ... d", "d is two things");
  wrong("[...], [...] -> ...", "two lists");
}

TEST_CASE("access: every row that computes has a map, or says that nothing joins it") {
  for (const OpRow& row : opset()) {
    CAPTURE(row.name);
    const bool must = row.cost == CostClass::Pointwise || row.cost == CostClass::Reduction ||
                      row.cost == CostClass::Product || row.cost == CostClass::Attention;
    if (must) CHECK(map_of(&row) != nullptr);
  }
}

}  // namespace
}  // namespace sfsdp::ir::access_test
