// SPDX-License-Identifier: BSD-3-Clause
// The product of two matrices that an op is in LibTorch's ops: what decides how fast each library computes it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include "sfsdp/ir/graph.h"

namespace sfsdp::ir {

// [m, k] by [k, n]. An operand that is not transposed lies by rows, or is copied so.
struct ProductShape {
  DType dtype = DType::f32;
  int64_t m = 0, n = 0, k = 0;
  bool a_transposed = false, b_transposed = false;

  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
  bool operator==(const ProductShape&) const = default;
  bool operator<(const ProductShape& other) const {
    const auto parts = [](const ProductShape& s) {
      return std::tuple(s.dtype, s.m, s.n, s.k, s.a_transposed, s.b_transposed);
    };
    return parts(*this) < parts(other);
  }
};

// "f32:512x2048x768:nt", m, n and k; t for a transposed operand, as BLAS has it.
std::string to_string(const ProductShape& shape);
std::optional<ProductShape> parse_product_shape(std::string_view text);

// For linear, its gradients and matmul, in float32 or float64. Nullopt: another op; products of batches; several joined in one op.
std::optional<ProductShape> product_of(const Op& op);

}  // namespace sfsdp::ir
