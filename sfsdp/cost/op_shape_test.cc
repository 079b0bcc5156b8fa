// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/op_shape.h"

#include <doctest/doctest.h>

#include <array>
#include <string>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/parser.h"

namespace sfsdp::cost::op_shape_test {
namespace {

// The last op of a program of `inputs`.
ProductShape shape_of(const std::string& inputs, const std::string& op) {
  const ir::Graph graph =
      ir::parse_or_throw(concat("graph mesh [dp_shard=1] view local\n", inputs, "fwd:\n  ", op, "\n  return %y\n"));
  return product_shape(*graph.ops().back());
}

std::string input(const char* name, const char* type) {
  return concat("  %", name, " = input name=", name, " : ", type, "\n");
}

using Sizes = std::array<double, 4>;
Sizes sizes(const ProductShape& shape) { return {shape.batch, shape.m, shape.n, shape.k}; }

TEST_CASE("product shapes: of each form, as its access map says") {
  const std::string x = input("x", "f32[2, 3, 5]"), g = input("g", "f32[2, 3, 7]"), w = input("w", "f32[7, 5]");
  const std::string bias = input("bias", "f32[7]");
  CHECK(sizes(shape_of(x + w, "%y = linear %x, %w : f32[2, 3, 7]")) == Sizes{1, 6, 7, 5});
  CHECK(sizes(shape_of(x + w + bias, "%y = linear %x, %w, %bias : f32[2, 3, 7]")) == Sizes{1, 6, 7, 5});
  CHECK(sizes(shape_of(g + w, "%y = linear_dx %g, %w : f32[2, 3, 5]")) == Sizes{1, 6, 5, 7});
  CHECK(sizes(shape_of(g + x, "%y = linear_dw %g, %x : f32[7, 5]")) == Sizes{1, 7, 5, 6});
  CHECK(sizes(shape_of(x + input("v", "f32[5, 4]"), "%y = matmul %x, %v : f32[2, 3, 4]")) == Sizes{1, 6, 4, 5});
  const std::string batched = x + input("v", "f32[2, 5, 4]");
  CHECK(sizes(shape_of(batched, "%y = matmul %x, %v : f32[2, 3, 4]")) == Sizes{2, 3, 4, 5});
  CHECK(sizes(shape_of(batched, "%y = aten.bmm %x, %v : f32[2, 3, 4]")) == Sizes{2, 3, 4, 5});
  CHECK(sizes(shape_of(batched + input("b", "f32[2, 3, 4]"), "%y = aten.baddbmm %b, %x, %v : f32[2, 3, 4]")) ==
        Sizes{2, 3, 4, 5});
  const std::string row = input("p", "f32[7]") + input("q", "f32[5]");  // summed over no dimension
  CHECK(sizes(shape_of(row, "%y = linear_dw %p, %q : f32[7, 5]")) == Sizes{1, 7, 5, 1});
  const std::string deep = input("d", "f32[2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 5]") + w;  // too deep for maps
  const ProductShape of_deep = shape_of(deep, "%y = linear %d, %w : f32[2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 7]");
  CHECK(of_deep.batch * of_deep.m * of_deep.n * of_deep.k == doctest::Approx(6 * 7 * 5));
  const std::string flat = input("a", "f32[3, 5]") + input("v", "f32[5, 4]") + input("b", "f32[4]");
  CHECK(sizes(shape_of(flat, "%y = aten.mm %a, %v : f32[3, 4]")) == Sizes{1, 3, 4, 5});
  CHECK(sizes(shape_of(flat, "%y = aten.addmm %b, %a, %v : f32[3, 4]")) == Sizes{1, 3, 4, 5});
}

TEST_CASE("product shapes: of groups of rows each row meets one matrix") {
  const std::string ends = input("e", "i32[4]");
  CHECK(sizes(shape_of(input("x", "f32[24, 16]") + input("w", "f32[4, 16, 8]") + ends,
                       "%y = aten._grouped_mm %x, %w, %e, none : f32[24, 8]")) == Sizes{1, 24, 8, 16});
  CHECK(sizes(shape_of(input("g", "f32[8, 24]") + input("x", "f32[24, 16]") + ends,
                       "%y = aten._grouped_mm %g, %x, %e, none : f32[4, 8, 16]")) == Sizes{1, 8, 16, 24});
}

TEST_CASE("product shapes: products side by side are as wide, or as deep, as all of them") {
  const std::string x = input("x", "f32[2, 3, 5]"), w = input("w", "f32[11, 5]");
  const std::string g = input("g", "f32[2, 3, 7]") + input("h", "f32[2, 3, 4]");
  CHECK(sizes(shape_of(x + w, "%y, %z = joined_linear %x, %w widths=[7, 4] : f32[2, 3, 7], f32[2, 3, 4]")) ==
        Sizes{1, 6, 11, 5});
  CHECK(sizes(shape_of(g + w, "%y = joined_linear_dx %g, %h, %w order=[0, 1] : f32[2, 3, 5]")) == Sizes{1, 6, 5, 11});
  CHECK(sizes(shape_of(g + x, "%y, %z = joined_linear_dw %g, %h, %x : f32[7, 5], f32[4, 5]")) == Sizes{1, 11, 5, 6});
  const std::string rows = input("p", "f32[7]") + input("r", "f32[4]") + input("q", "f32[5]");  // over no dimension
  CHECK(sizes(shape_of(rows, "%y, %z = joined_linear_dw %p, %r, %q : f32[7, 5], f32[4, 5]")) == Sizes{1, 11, 5, 1});
  // of one value twice
  const std::string one = input("g", "f32[2, 3, 7]") + x;
  CHECK(sizes(shape_of(one, "%y, %z = joined_linear_dw %g, %g, %x : f32[7, 5], f32[7, 5]")) == Sizes{1, 14, 5, 6});
}

TEST_CASE(
    "product shapes: a convolution multiplies by each weight of a channel as often as it writes it, or reads it") {
  const std::string attrs = " stride=[2, 2] padding=[0, 0] dilation=[1, 1] output_padding=[0, 0] ";
  const auto flops = [&](const std::string& inputs, const std::string& text) {
    const ProductShape shape = shape_of(inputs, text);
    return shape.batch * shape.m * shape.n * shape.k;
  };
  // 2 images, 4 channels to 6 of 3 × 3 outputs, windows of 2 × 2
  const std::string x = input("x", "f32[2, 4, 6, 6]"), y = input("g", "f32[2, 6, 3, 3]");
  CHECK(flops(x + input("w", "f32[6, 4, 2, 2]"), "%y = aten.convolution %x, %w groups=1 transposed=false" + attrs +
                                                     ": f32[2, 6, 3, 3]") == 2 * 6 * 9 * 4 * 4);
  CHECK(flops(x + input("w", "f32[6, 2, 2, 2]"), "%y = aten.convolution %x, %w groups=2 transposed=false" + attrs +
                                                     ": f32[2, 6, 3, 3]") == 2 * 6 * 9 * 2 * 4);
  CHECK(flops(y + input("w", "f32[6, 4, 2, 2]"), "%y = aten.convolution %g, %w groups=1 transposed=true" + attrs +
                                                     ": f32[2, 4, 6, 6]") == 2 * 6 * 9 * 4 * 4);
  const auto backward = [&](const char* mask) {
    return flops(y + x + input("w", "f32[6, 4, 2, 2]"),
                 concat("%y, %dw, %db = aten.convolution_backward %g, %x, %w groups=1 transposed=false output_mask=",
                        mask, " bias_sizes=[6]", attrs, ": f32[2, 4, 6, 6], f32[6, 4, 2, 2], f32[6]"));
  };
  CHECK(backward("[true, true, true]") == 2 * 2 * 6 * 9 * 4 * 4);
  CHECK(backward("[false, true, true]") == 2 * 6 * 9 * 4 * 4);  // a first layer's
}

}  // namespace
}  // namespace sfsdp::cost::op_shape_test
