// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tune/choose_products.h"

#include <doctest/doctest.h>

namespace sfsdp::tune::choose_products_test {
namespace {

std::string chosen(const cost::ProductSeconds& seconds) {
  const ir::ProductShape shape = {ir::DType::f32, 4, 5, 6, false, false};
  const passes::ProductTable table = choose_products({{shape, seconds}}, "onednn.matmul");
  return table.contains(shape) ? table.at(shape) : "none";
}

TEST_CASE(
    "the fastest library of a shape is chosen, the usual one where the gain is within what measurements differ by") {
  CHECK(chosen({{"aten.mm", 2}, {"onednn.matmul", 1}, {"openblas.gemm", 0.5}}) == "openblas.gemm");
  CHECK(chosen({{"aten.mm", 2}, {"onednn.matmul", 1}, {"openblas.gemm", 0.98}}) == "onednn.matmul");
  CHECK(chosen({{"aten.mm", 0.96}, {"onednn.matmul", 1}, {"openblas.gemm", 0.98}}) == "aten.mm");
  CHECK(chosen({{"aten.mm", 1}, {"openblas.gemm", 0.98}}) == "aten.mm");
  CHECK(chosen({{"aten.mm", 1}, {"openblas.gemm", 0.9}}) == "openblas.gemm");
  CHECK(chosen({{"mkl.gemm", 1}, {"openblas.gemm", 0.99}}) == "openblas.gemm");
  CHECK(chosen({}) == "none");
}

}  // namespace
}  // namespace sfsdp::tune::choose_products_test
