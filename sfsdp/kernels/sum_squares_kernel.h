// SPDX-License-Identifier: BSD-3-Clause
// The arithmetic of sum_squares.h; see vector.h for how it is compiled.
// NOLINTBEGIN
namespace sfsdp::kernels {
namespace {

constexpr int kSumsOfSquares = 32;  // on all processors

template <class T>
SFSDP_INLINE double squares_of(const T* data, int64_t count) {
  constexpr int kVectors = kSumsOfSquares / kLanes;
  D sums[kVectors] = {};
  int64_t i = 0;
  for (; i + kSumsOfSquares <= count; i += kSumsOfSquares)
    for (int k = 0; k < kVectors; ++k) {
      const D wide = __builtin_convertvector(load(data + i + k * kLanes), D);
      sums[k] += wide * wide;
    }
  for (int k = 0; i < count; ++i, ++k) {
    const double x = as_float(data[i]);
    sums[k / kLanes][k % kLanes] += x * x;
  }
  double sum = 0;
  for (int k = 0; k < kSumsOfSquares; ++k) sum += sums[k / kLanes][k % kLanes];
  return sum;
}

double squares_sum(const void* data, bool wide, int64_t count) {
  return wide ? squares_of(static_cast<const float*>(data), count)
              : squares_of(static_cast<const uint16_t*>(data), count);
}

}  // namespace
}  // namespace sfsdp::kernels
// NOLINTEND
