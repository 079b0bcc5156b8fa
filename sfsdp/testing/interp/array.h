// SPDX-License-Identifier: BSD-3-Clause
// A tensor of the interpreter: row-major doubles that are kept representable in `dtype`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sfsdp/ir/type.h"

namespace sfsdp::ir::interp {

struct Array {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::vector<double> data;  // one per element

  static Array zeros(DType dtype, std::vector<int64_t> shape);
  static Array scalar(DType dtype, double value) { return {dtype, {}, {value}}; }
  int64_t numel() const { return static_cast<int64_t>(data.size()); }
  bool operator==(const Array&) const = default;
};

int64_t numel(const std::vector<int64_t>& shape);

// Infinite where an element of either is no number, or shapes differ.
double largest_difference(const Array& a, const Array& b);
double largest_magnitude(const Array& array);  // of its finite numbers

// The nearest number that dtype can hold, ties to even; beyond the range, infinity (f8e4m3 has none: nan). Integers are
// cut towards zero, b1 is 0 or 1. i64 is exact up to 2^53.
double round_to(DType dtype, double value);

// Small numbers that depend on `seed` alone: ±2 in steps of 1/8 for floats (exact in bf16, and in short sums of
// products too), 0 … 3 for integers.
Array seeded(const Type& type, uint64_t seed);

std::ostream& operator<<(std::ostream& out, const Array& array);

}  // namespace sfsdp::ir::interp
