// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include "sfsdp/testing/expect_pass.h"

namespace sfsdp::passes::linear_test {
namespace {

using testing::expect_pass;

TEST_CASE("canonicalise: products with a matrix as it lies, of two activations, and of many matrices are matmul") {
  expect_pass("canonicalise", R"(
    graph mesh [] view local
      %w = param name=w : f32[4, 5] at fc
      %b = param name=b : f32[5] at fc
      %x = input name=x : f32[2, 3, 4]
      %q = input name=q : f32[2, 3, 4]
    fwd:
      %x2 = aten.view %x size=[6, 4] : f32[6, 4] at fc
      %y = aten.addmm %b, %x2, %w : f32[6, 5] at fc
      %z = aten.mm %x2, %w : f32[6, 5] at fc
      %qt = aten.transpose.int %q dim0=1 dim1=2 : f32[2, 4, 3]{12, 1, 4}
      %s = aten.bmm %x, %qt : f32[2, 3, 3]
      return %y, %z, %s
  )",
              R"(
    graph mesh [] view local
      %w = param name=w : f32[4, 5] at fc
      %b = param name=b : f32[5] at fc
      %x = input name=x : f32[2, 3, 4]
      %q = input name=q : f32[2, 3, 4]
    fwd:
      %y = matmul %x, %w, %b : f32[2, 3, 5] at fc
      %y.rows = aten.view %y size=[6, 5] : f32[6, 5] at fc
      %z = matmul %x, %w : f32[2, 3, 5] at fc
      %z.rows = aten.view %z size=[6, 5] : f32[6, 5] at fc
      %qt = aten.transpose.int %q dim0=1 dim1=2 : f32[2, 4, 3]{12, 1, 4}
      %s = matmul %x, %qt : f32[2, 3, 3]
      return %y.rows, %z.rows, %s
  )");
}

TEST_CASE("canonicalise: a product that is scaled stays") {
  testing::expect_unchanged("canonicalise", R"(
    graph mesh [] view local
      %a = input name=a : f32[3, 4]
      %b = input name=b : f32[4, 5]
      %c = input name=c : f32[5]
    fwd:
      %y = aten.addmm %c, %a, %b alpha=2 : f32[3, 5]
      return %y
  )");
}

}  // namespace
}  // namespace sfsdp::passes::linear_test
