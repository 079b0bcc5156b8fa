// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/canonical/decompose.h"

#include <doctest/doctest.h>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/passes/canonical/decompose.h"
#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::ir::decompose_test {
namespace {

// Its formula in the interpreter against the ops that it stands for, in the interpreter.
void check_decomposition(const std::string& line, const std::string& inputs) {
  const std::string text = concat("graph mesh [] view local\n", inputs, "fwd:\n  ", line, "\n");
  CAPTURE(text);
  Graph graph = parse_or_throw(text, "test.ir");
  const Op& op = *graph.ops().back();
  const auto* left = left_for_backward(op.opcode);
  for (const auto& result : op.results())
    if (result->type().kind == Type::Kind::Tensor && !(left && left->result == result->result_index()))
      graph.outputs.push_back(result.get());
  const Graph decomposed = passes::decomposed(graph);
  CHECK_FALSE(is_canonical(decomposed.ops().back()->opcode));
  const std::string wrong = testing::check_same_meaning(graph, decomposed, testing::Agreement::UpToOrderOfSums);
  CHECK_MESSAGE(wrong.empty(), wrong);
}

TEST_CASE("canonical ops mean what their decompositions mean") {
  const auto input = [](const std::string& name, const std::string& type) {
    return concat("  %", name, " = input name=", name, " : ", type, "\n");
  };
  const std::string x = input("x", "f32[2, 3, 4]"), w = input("w", "f32[4]"), m = input("m", "f32[5, 4]");
  check_decomposition("%y = linear %x, %m : f32[2, 3, 5]", x + m);
  check_decomposition("%y = linear %x, %m, %b : f32[2, 3, 5]", x + m + input("b", "f32[5]"));
  check_decomposition("%y = linear_dx %g, %m : f32[2, 3, 4]", input("g", "f32[2, 3, 5]") + m);
  check_decomposition("%y = linear_dw %g, %x : f32[5, 4]", input("g", "f32[2, 3, 5]") + x);
  for (const char* operand : {"%w", "none"})
    for (const char* first : {"", " cast_first=true"})
      check_decomposition(
          concat("%y, %r = rms_norm %x, ", operand, first, " dims=1 eps=0.5 : f32[2, 3, 4], f32[2, 3, 1]"), x + w);
  check_decomposition("%y, %r = rms_norm %x, %v dims=2 eps=0.5 : f32[2, 3, 4], f32[2, 1, 1]",
                      x + input("v", "f32[3, 4]"));
  // rstd is what forward made of x
  for (const char* residual : {"none", "%x"})
    check_decomposition(
        concat("%dx, %dw = rms_norm_backward %g, %x, %w, %r, ", residual, " dims=1 : f32[2, 3, 4], f32[4]"),
        input("g", "f32[2, 3, 4]") + x + w + input("r", "f32[2, 3, 1]"));
  check_decomposition("%dx, %dw = rms_norm_backward %g, %x, %v, %r, none dims=3 : f32[2, 3, 4], f32[2, 3, 4]",
                      input("g", "f32[2, 3, 4]") + x + input("v", "f32[2, 3, 4]") + input("r", "f32[1, 1, 1]"));
  check_decomposition("%dx, %none = rms_norm_backward %g, %x, none, %r, none dims=1 : f32[2, 3, 4], token",
                      input("g", "f32[2, 3, 4]") + x + input("r", "f32[2, 3, 1]"));
  const std::string angles = input("c", "f32[3, 2]") + input("s", "f32[3, 2]");
  for (const char* turn : {"rope", "rope_inverse"}) {
    check_decomposition(concat("%y = ", turn, " %x, %c, %s : f32[2, 3, 4]"), x + angles);
    check_decomposition(concat("%y = ", turn, " %z, %c1, %s1 : f32[2, 3, 2, 4]"),
                        input("z", "f32[2, 3, 2, 4]") + input("c1", "f32[3, 1, 2]") + input("s1", "f32[3, 1, 2]"));
  }
  const std::string rows = input("l", "f32[5, 4]") + input("t", "i64[5]");
  for (const char* how :
       {" reduction=1", " reduction=2", " ignore_index=2 reduction=1", " in_dtype=true reduction=1"}) {
    const std::string forward = concat("%loss, %n, %lse = cross_entropy %l, %t", how, " : f32[], f32[], f32[5]");
    check_decomposition(forward, rows);
    check_decomposition(concat(forward, "\n  %d = cross_entropy_backward %g, %l, %t, %n, %lse", how, " : f32[5, 4]"),
                        input("g", "f32[]") + rows);
  }
  const std::string drop = "%y, %state = dropout %x keep=0.75 stream=3 : f32[2, 3, 4], i64[2] at drop";
  check_decomposition(drop, x);
  check_decomposition(drop + "\n  %d = dropout_backward %g, %state keep=0.75 : f32[2, 3, 4] at drop",
                      x + input("g", "f32[2, 3, 4]"));
}

TEST_CASE("canonical ops mean what their decompositions mean: products") {
  const auto input = [](const std::string& name, const std::string& type) {
    return concat("  %", name, " = input name=", name, " : ", type, "\n");
  };
  const std::string x = input("x", "f32[2, 3, 4]"), w = input("w", "f32[5, 4]"), b = input("b", "f32[4, 5]");
  check_decomposition("%y = matmul %x, %b : f32[2, 3, 5]", x + b);
  check_decomposition("%y = matmul %x, %b, %c : f32[2, 3, 5]", x + b + input("c", "f32[5]"));
  check_decomposition("%y = matmul %x, %z : f32[2, 3, 2]", x + input("z", "f32[2, 4, 2]"));
  check_decomposition("%a, %c = joined_linear %x, %w widths=[3, 2] : f32[2, 3, 3], f32[2, 3, 2]", x + w);
  const std::string grads = input("a", "f32[2, 3, 3]") + input("c", "f32[2, 3, 2]");
  for (const char* order : {"[0, 1]", "[1, 0]"})
    check_decomposition(concat("%dx = joined_linear_dx %a, %c, %w order=", order, " : f32[2, 3, 4]"), grads + w);
  check_decomposition("%da, %dc = joined_linear_dw %a, %c, %x : f32[3, 4], f32[2, 4]", grads + x);
}

TEST_CASE("canonical ops mean what their decompositions mean: rotary embedding of halves") {
  const auto input = [](const std::string& name, const std::string& type) {
    return concat("  %", name, " = input name=", name, " : ", type, "\n");
  };
  const std::string x = input("x", "f32[2, 3, 4]");
  for (const char* width : {"2", "4"}) {
    const std::string angles = input("c", concat("f32[3, ", width, "]")) + input("s", concat("f32[3, ", width, "]"));
    check_decomposition("%y = rope %x, %c, %s halves=true : f32[2, 3, 4]", x + angles);
    for (const char* sliced : {"", " sliced=true", " direct_last=true sliced=true"})
      check_decomposition(concat("%y = rope_inverse %x, %c, %s halves=true", sliced, " : f32[2, 3, 4]"), x + angles);
  }
}

TEST_CASE("canonical ops with operands that do not fit are refused") {
  const auto says = [](const std::string& line, const std::string& inputs, const char* part) {
    testing::expect_diagnostic(concat("graph mesh [] view local\n", inputs, "fwd:\n  ", line, "\n"), part);
  };
  const std::string x = "  %x = input name=x : f32[2, 3, 4]\n", w = "  %w = input name=w : f32[5, 4]\n",
                    v = "  %v = input name=v : f32[5]\n", t = "  %t = input name=t : i64[6]\n",
                    h = "  %h = input name=h : bf16[5, 4]\n", q = "  %q = input name=q : f32[6, 5]\n";
  says("%y = linear %x, %w : f32[2, 3, 4]", x + w, "expected [2, 3, 5]");
  says("%y = linear %q, %w : f32[6, 5]", q + w, "expected a last dimension of 4");
  says("%y = linear %x, %h : f32[2, 3, 5]", x + h, "the weight");
  says("%y = linear %x, %w, %x : f32[2, 3, 5]", x + w, "the bias");
  says("%y = linear_dx %x, %w : f32[2, 3, 4]", x + w, "expected a last dimension of 5");
  says("%y = linear_dw %x, %w : f32[4, 4]", x + w, "expected as many rows in both");
  says("%y, %r = rms_norm %x, %v dims=1 eps=0.1 : f32[2, 3, 4], f32[2, 3, 1]", x + v, "the weight");
  says("%y, %r = rms_norm %x, none dims=4 eps=0.1 : f32[2, 3, 4], f32[2, 3, 1]", x, "expected 1 to the 3 dimensions");
  says("%y, %r = rms_norm %x, none dims=1 eps=0.1 : f32[2, 3, 4], f32[2, 3]", x, "expected [2, 3, 1]");
  says("%y, %r = rms_norm %x, none dims=1 : f32[2, 3, 4], f32[2, 3, 1]", x, "eps");
  says("%y = rope %x, %v, %v : f32[2, 3, 4]", x + v, "expected one that broadcasts with half");
  says("%y = rope %q, %v, %v : f32[6, 5]", q + v, "expected an even last dimension");
  says("%y = rope %x, %w, %w halves=true : f32[2, 3, 4]", x + w, "expected one that broadcasts with f32[2, 3, 4]");
  says("%y = rope %x, %v : f32[2, 3, 4]", x + v, "expected cos and sin, or complex numbers");
  says("%l, %n, %e = cross_entropy %w, %t : f32[], f32[], f32[6]", w + t, "the targets");
  says("%l, %n, %e = cross_entropy %q, %t reduction=0 : f32[], f32[], f32[6]", q + t, "expected [6]");
  says("%l, %n, %e = cross_entropy %q, %t : f32[], f32[], f32[5]", q + t, "expected [6]");
  says("%d = cross_entropy_backward %v, %q, %t, %v, %v : f32[6, 5]", q + t + v, "lse");
  says("%y, %s = dropout %x keep=0.5 : f32[2, 3, 4], i64[3]", x, "expected [2]");
  says("%y = dropout_backward %x, %x keep=0.5 : f32[2, 3, 4]", x, "what dropout left");
  says("%y = matmul %x, %w : f32[2, 3, 4]", x + w, "expected a last dimension of 5");
  says("%y, %z = joined_linear %x, %w widths=[3, 3] : f32[2, 3, 3], f32[2, 3, 3]", x + w, "expected 5");
  says("%y = joined_linear_dx %x, %q, %w order=[0, 1] : f32[2, 3, 4]", x + q + w, "operand 1");
  says("%y = joined_linear_dx %v, %v, %h order=[0, 1] : f32[4]", v + h, "the weight");
  says("%y, %z = joined_linear_dw %x, %q, %x : f32[4, 4], f32[5, 4]", x + w + "  %q = input name=q : f32[7, 5]\n",
       "expected as many rows in both");
  const std::string norm = "dims=1 only=";
  says(concat("%y, %n = rms_norm_backward %x, %x, none, %r, none ", norm, "y : f32[2, 3, 4], token"),
       x + "  %r = input name=r : f32[2, 3, 1]\n", "expected x or w");
  says(concat("%y, %n = rms_norm_backward %x, %x, none, %r, none ", norm, "w : f32[2, 3, 4], token"),
       x + "  %r = input name=r : f32[2, 3, 1]\n", "expected a token");
}

TEST_CASE("terms: chains of views that end at the same elements are one") {
  Graph graph = parse_or_throw(R"(graph mesh [] view local
  %x = input name=x : f32[2, 3, 4]
fwd:
  %a = aten.view %x size=[6, 4] : f32[6, 4]
  %at = aten.t %a : f32[4, 6]{1, 4}
  %att = aten.t %at : f32[6, 4]
  %b = aten.transpose.int %x dim0=0 dim1=1 : f32[3, 2, 4]{4, 12, 1}
  %c = aten.select.int %b dim=0 index=-1 : f32[2, 4]{12, 1}
  %d = aten.slice.Tensor %x dim=1 start=2 : f32[2, 1, 4]{12, 4, 1}
  %e = aten.squeeze.dim %d dim=1 : f32[2, 4]{12, 1}
  %f = aten.select.int %b dim=0 index=1 : f32[2, 4]{12, 1}
)",
                               "test.ir");
  const auto term = [&](const char* name) { return term_of(graph.find_value(name)); };
  CHECK(is_same(term("att"), term("a")));
  CHECK_FALSE(is_same(term("at"), term("a")));
  CHECK(is_same(term("c"), selected(term("x"), 1, 2)));
  CHECK_FALSE(is_same(term("c"), term("f")));
  CHECK(is_same(viewed(term("a"), {2, 3, 4}), term("x")));
  CHECK(is_same(viewed(term("b"), {3, 2, 2, 2}), viewed(term("b"), {3, 2, 2, 2})));
  CHECK_FALSE(viewed(term("b"), {6, 4}).base);  // would have to copy
  CHECK_FALSE(viewed(term("at"), {24}).base);
  CHECK(viewed(term("c"), {2, 1, 2, 2}).type.strides == std::vector<int64_t>{12, 12, 2, 1});
  CHECK(is_same(transposed(term("a"), 0, 1), term("at")));
  CHECK_FALSE(expanded(term("x"), {2, 3, 5}).base);
  CHECK(expanded(term("d"), {2, 7, 4}).type.strides == std::vector<int64_t>{12, 0, 1});
}

}  // namespace
}  // namespace sfsdp::ir::decompose_test
