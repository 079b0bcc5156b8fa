// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/canonical/product_shape.h"

#include <doctest/doctest.h>

#include "sfsdp/base/strings.h"
#include "sfsdp/ir/parser.h"

namespace sfsdp::ir::product_shape_test {
namespace {

TEST_CASE("the product of a linear layer, its gradients and matmul, as LibTorch's ops have it; nothing for others") {
  const Graph graph = parse_or_throw(R"(
graph mesh [dp=1] view local
  %x = input name=x : f32[2, 4, 8]
  %w = input name=w : f32[6, 8]
  %c = input name=c : f32[6, 8]{1, 6}
  %b = input name=b : f32[6]
  %m = input name=m : f32[8, 6]
  %d = input name=d : f64[4, 8]
  %v = input name=v : f64[6, 8]
  %h = input name=h : bf16[4, 8]
  %u = input name=u : bf16[6, 8]
  %p = input name=p : f32[2, 8, 3]
fwd:
  %1 = linear %x, %w : f32[2, 4, 6]
  %2 = linear %x, %c, %b : f32[2, 4, 6]
  %3 = linear_dx %1, %w : f32[2, 4, 8]
  %4 = linear_dw %1, %x : f32[6, 8]
  %5 = matmul %x, %m : f32[2, 4, 6]
  %6 = matmul %x, %p : f32[2, 4, 3]
  %7 = linear %d, %v : f64[4, 6]
  %8 = linear %h, %u : bf16[4, 6]
  %9 = aten.relu %1 : f32[2, 4, 6]
  return %1
)");
  std::vector<std::string> found;
  for (const auto& op : graph.ops()) {
    if (op->is("input")) continue;
    const auto shape = product_of(*op);
    found.push_back(shape ? to_string(*shape) : "none");
    if (shape) CHECK(parse_product_shape(found.back()) == shape);
  }
  CHECK(join(found, " ") ==
        "f32:8x6x8:nt f32:8x6x8:nn f32:8x8x6:nn f32:6x8x8:tn f32:8x6x8:nn none f64:4x6x8:nt none none");
}

TEST_CASE("a text that is no shape of a product is none") {
  for (const char* text : {"", "f32", "f32:1x2x3", "f32:1x2x3:n", "f32:1x2x3:nx", "f32:1x2:nn", "f32:1x2x-3:nn",
                           "f3:1x2x3:nn", "f32:1x2x3:nn:", "f32:1x2x99999999999999999999:nn"}) {
    CAPTURE(text);
    CHECK(!parse_product_shape(text));
  }
}

}  // namespace
}  // namespace sfsdp::ir::product_shape_test
