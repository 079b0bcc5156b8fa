// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/interp/array.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>

#include "sfsdp/base/philox.h"

namespace sfsdp::ir::interp {
namespace {

struct FloatFormat {
  int fraction_bits;
  int min_exponent;  // of the smallest normal number
  double largest;
  double overflow;  // what a larger number becomes
};

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Half a step above `largest`, ties to even, is where overflow starts; round_float rounds first and compares then.
double round_float(double value, const FloatFormat& format) {
  if (value == 0 || !std::isfinite(value)) return value;
  const int exponent = std::max(std::ilogb(value), format.min_exponent);
  const double step = std::ldexp(1.0, exponent - format.fraction_bits);
  const double rounded = std::nearbyint(value / step) * step;  // the default mode: to nearest, ties to even
  return std::abs(rounded) > format.largest ? std::copysign(format.overflow, value) : rounded;
}

double round_integer(double value, double lowest, double highest) {
  if (std::isnan(value)) return 0;
  return std::clamp(std::trunc(value), lowest, highest);
}

}  // namespace

double largest_difference(const Array& a, const Array& b) {
  if (a.shape != b.shape || a.data.size() != b.data.size()) return kInf;
  double most = 0;
  for (size_t i = 0; i < a.data.size(); ++i) {
    if (a.data[i] == b.data[i]) continue;  // infinities too
    const double by = std::abs(a.data[i] - b.data[i]);
    most = std::isnan(by) ? kInf : std::max(most, by);
  }
  return most;
}

double largest_magnitude(const Array& array) {
  double most = 0;
  for (const double x : array.data)
    if (std::isfinite(x)) most = std::max(most, std::abs(x));
  return most;
}

int64_t numel(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

Array Array::zeros(DType dtype, std::vector<int64_t> shape) {
  const auto count = static_cast<size_t>(interp::numel(shape));
  return {dtype, std::move(shape), std::vector<double>(count)};
}

double round_to(DType dtype, double value) {
  switch (dtype) {
    case DType::f64: return value;
    case DType::f32:
    case DType::c64:  // real parts only; no pass looks into complex numbers
      return static_cast<double>(static_cast<float>(value));
    case DType::bf16: return round_float(value, {7, -126, 0x1.fep127, kInf});
    case DType::f16: return round_float(value, {10, -14, 65504, kInf});
    case DType::f8e4m3: return round_float(value, {3, -6, 448, kNan});
    case DType::f8e5m2: return round_float(value, {2, -14, 57344, kInf});
    case DType::i64: return round_integer(value, -0x1p53, 0x1p53);
    case DType::i32: return round_integer(value, -0x1p31, 0x1p31 - 1);
    case DType::i16: return round_integer(value, -32768, 32767);
    case DType::i8: return round_integer(value, -128, 127);
    case DType::u8: return round_integer(value, 0, 255);
    case DType::b1: return value != 0 ? 1 : 0;
  }
  return value;
}

Array seeded(const Type& type, uint64_t seed) {
  Array array = Array::zeros(type.dtype, type.shape());
  for (size_t i = 0; i < array.data.size(); ++i) {
    const uint32_t word = philox4x32(seed, 0, i)[0];
    const double small = static_cast<double>(word % 33) / 8 - 2;
    array.data[i] = round_to(type.dtype, is_floating(type.dtype) ? small : static_cast<double>(word % 4));
  }
  return array;
}

std::ostream& operator<<(std::ostream& out, const Array& array) {
  constexpr size_t kShown = 8;
  out << Type::tensor(array.dtype, array.shape) << " {";
  for (size_t i = 0; i < array.data.size() && i < kShown; ++i) out << (i ? ", " : "") << array.data[i];
  return out << (array.data.size() > kShown ? ", …}" : "}");
}

}  // namespace sfsdp::ir::interp
