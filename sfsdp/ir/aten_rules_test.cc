// SPDX-License-Identifier: BSD-3-Clause
// Lines of a graph that LibTorch would compute, and the same with one thing wrong. What LibTorch itself says of random
// calls is compared in capture/aten_rules_test.cc.
#include "sfsdp/ir/shape_rules.h"

#include <doctest/doctest.h>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::ir::aten_rules_test {
namespace {

std::string graph_of(const std::string& line) {
  return "graph mesh [] view local\n"
         "  %f = input name=f : f32[4, 6]\n  %g = input name=g : f32[6, 8]\n  %b = input name=b : bf16[4, 6]\n"
         "  %i = input name=i : i64[4, 6]\n  %n = input name=n : f32[]\n  %d = input name=d : f64[]\n"
         "  %q = input name=q : f32[2, 4, 8, 16]\n  %k = input name=k : f32[2, 2, 8, 16]\n  %t = input name=t : "
         "i64[4]\n"
         "  %c = scalar value=2.5 : f64[]\nfwd:\n  " +
         line + "\n";
}

void expect_right(const std::string& line) {
  CAPTURE(line);
  const ParseResult parsed = parse(graph_of(line), "test.ir");
  REQUIRE(to_string(parsed.diagnostics) == "");
  CHECK(to_string(verify(parsed.graph, &parsed.locations)) == "");
  CHECK(unchecked_opcodes(parsed.graph).empty());
}

TEST_CASE("aten ops: dimensions that are turned over are there") {
  expect_right("%r = aten.roll %f dims=[-1, 0] shifts=[1, 2] : f32[4, 6]");
  expect_right("%r = aten.roll %f shifts=[1] : f32[4, 6]");
  expect_right("%r = aten.flip %f dims=[1] : f32[4, 6]");
  testing::expect_diagnostic(graph_of("%r = aten.roll %f dims=[5] shifts=[1] : f32[4, 6]"), "dimension 5");
  testing::expect_diagnostic(graph_of("%r = aten.flip %f dims=[0, -3] : f32[4, 6]"), "dimension -3");
}

TEST_CASE("aten ops: dtypes promote as LibTorch's do") {
  expect_right("%r = aten.add.Tensor %f, %b : f32[4, 6]");
  expect_right("%r = aten.mul.Tensor %b, %d : bf16[4, 6]");  // a number without dimensions: its category alone
  expect_right("%r = aten.mul.Tensor %b, %c : bf16[4, 6]");
  expect_right("%r = aten.mul.Tensor %i, %c : f32[4, 6]");  // a number of the model's code: the default float
  expect_right("%r = aten.mul.Tensor %i, %d : f64[4, 6]");
  expect_right("%r = aten.add.Scalar %i other=1 : i64[4, 6]");
  expect_right("%r = aten.add.Scalar %i other=1.5 : f32[4, 6]");
  expect_right("%r = aten.div.Scalar %i other=2 : f32[4, 6]");
  expect_right("%r = aten.sum %i : i64[]");
  expect_right("%r = aten.exp %i : f32[4, 6]");
  testing::expect_diagnostic(graph_of("%r = aten.add.Tensor %f, %b : bf16[4, 6]"), "expected f32, got bf16");
  testing::expect_diagnostic(graph_of("%r = aten.ne.Scalar %f other=0 : f32[4, 6]"), "expected b1, got f32");
  testing::expect_diagnostic(graph_of("%r = aten.add.Tensor %f, %g : f32[4, 6]"), "do not broadcast");
}

TEST_CASE("aten ops: a product says which sizes do not fit") {
  expect_right("%r = aten.mm %f, %g : f32[4, 8]");
  testing::expect_diagnostic(
      "graph mesh [] view local\n  %a = input name=a : f32[2, 3]\n  %b = input name=b : i64[5, 7]\nfwd:\n"
      "  %r = aten.mm %a, %b : bf16[100]\n",
      "test.ir:5:3: aten.mm %r has the wrong dtype: operand 1");
  testing::expect_diagnostic(graph_of("%r = aten.mm %f, %f : f32[4, 6]"), "multiplies shapes that do not fit");
  testing::expect_diagnostic(graph_of("%r = aten.mm %f, %g : f32[8, 4]"), "expected [4, 8]");
  testing::expect_diagnostic(graph_of("%r = aten.mm %f : f32[4, 6]"), "has 1 operand");
  testing::expect_diagnostic(graph_of("%r = aten.mm %f, none : f32[4, 6]"), "lacks operand 1");
  testing::expect_diagnostic(graph_of("%r = aten.mm %n, %n : f32[]"), "has an operand 0 of 0 dimensions");
}

TEST_CASE("aten ops: views") {
  expect_right("%r = aten.view %f size=[2, -1] : f32[2, 12]");
  expect_right("%r = aten.squeeze.dim %q dim=0 : f32[2, 4, 8, 16]");
  expect_right("%r = aten.slice.Tensor %f dim=1 end=9223372036854775807 start=-2 : f32[4, 2]");
  expect_right("%r = aten.select.int %f dim=-1 index=5 : f32[4]");
  expect_right("%r, %s = aten.split.Tensor %f dim=1 split_size=4 : f32[4, 4], f32[4, 2]");
  expect_right("%r = aten.expand %n size=[3, 2] : f32[3, 2]{0, 0}");
  expect_right("%r = aten.as_strided %f size=[3, 2] storage_offset=7 stride=[6, 1] : f32[3, 2]{6, 1}");
  testing::expect_diagnostic(graph_of("%r = aten.view %f size=[5, -1] : f32[5, 4]"), "expected the 24 elements");
  testing::expect_diagnostic(graph_of("%r = aten.select.int %f dim=0 index=4 : f32[6]"), "has index=4");
  testing::expect_diagnostic(graph_of("%r = aten.permute %f dims=[0, 0] : f32[4, 4]"), "each of the 2 dimensions once");
  testing::expect_diagnostic(graph_of("%r = aten.expand %f size=[4, 7] : f32[4, 7]"), "has size=[4, 7]");
  testing::expect_diagnostic(graph_of("%r, %s = aten.split.Tensor %f dim=1 split_size=2 : f32[4, 2], f32[4, 2]"),
                             "expected 3");
  testing::expect_diagnostic(
      graph_of("%r = aten.as_strided %f size=[4, 2] storage_offset=7 stride=[6, 1] : f32[4, 2]{6, 1}"),
      "reads element 26");
  testing::expect_diagnostic(graph_of("%r = aten.transpose.int %f dim0=0 dim1=2 : f32[6, 4]"), "names dimension 2");
}

TEST_CASE("aten ops: attention, losses, norms") {
  expect_right(
      "%a, %l = aten._scaled_dot_product_flash_attention_for_cpu %q, %k, %k, none is_causal=true : f32[2, 4, 8, 16], "
      "f32[2, 4, 8]");
  expect_right("%l, %w = aten.nll_loss_forward %f, %t, none ignore_index=-100 reduction=1 : f32[], f32[]");
  expect_right(
      "%a, %m, %s = aten.native_layer_norm %f, none, none eps=1e-05 normalized_shape=[6] : f32[4, 6], f32[4, 1], "
      "f32[4, 1]");
  testing::expect_diagnostic(
      graph_of("%a, %l = aten._scaled_dot_product_flash_attention_for_cpu %q, %k, %k is_causal=2 : f32[2, 4, 8, 16], "
               "f32[2, 4, 8]"),
      "needs is_causal=");
  testing::expect_diagnostic(graph_of("%l, %w = aten.nll_loss_forward %f, none, none reduction=1 : f32[], f32[]"),
                             "lacks operand 1");
  testing::expect_diagnostic(
      graph_of(
          "%a, %m, %s = aten.native_layer_norm %f, none, none normalized_shape=[4] : f32[4, 6], f32[4, 1], f32[4, 1]"),
      "expected the last sizes");
}

TEST_CASE("aten ops without a rule are listed, each once") {
  const Graph graph = parse_or_throw(
      graph_of("%r = aten.erfc %f : f32[4, 6]\n  %s = aten.erfc %f : f32[4, 6]\n  %u = aten.diagonal %f : f32[4]"));
  CHECK(unchecked_opcodes(graph) == std::vector<std::string>{"aten.diagonal", "aten.erfc"});
}

TEST_CASE("a row of an overload comes before the row of all overloads") {
  CHECK(find_row("aten.add.Tensor") != find_row("aten.add.*"));
  CHECK(find_row("aten.add.Scalar") == find_row("aten.add.*"));
  CHECK(find_row("aten.max") != nullptr);
  CHECK(find_row("aten.max.names_dim") == nullptr);
  CHECK(find_row("aten.add.out") == nullptr);  // writes into an operand, which no row says
}

}  // namespace
}  // namespace sfsdp::ir::aten_rules_test
