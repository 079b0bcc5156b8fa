// SPDX-License-Identifier: BSD-3-Clause
// Vectors of SFSDP_LANES floats, and what kernels do with them. This file and the *_kernel.h are included once in each family_*.cc,
// after everything else, and compiled there for its processors. They include nothing and call no inline function of others: such a
// function, compiled here for one processor, might be taken by the linker for all.
// NOLINTBEGIN
namespace sfsdp::kernels {
namespace {

constexpr int64_t kLanes = SFSDP_LANES;

using V = float __attribute__((vector_size(SFSDP_LANES * sizeof(float))));
using I = int32_t __attribute__((vector_size(SFSDP_LANES * sizeof(float))));
using U = uint32_t __attribute__((vector_size(SFSDP_LANES * sizeof(float))));
using H = uint16_t __attribute__((vector_size(SFSDP_LANES * sizeof(uint16_t))));
using D = double __attribute__((vector_size(SFSDP_LANES * sizeof(double))));
#define SFSDP_INLINE inline __attribute__((always_inline))

SFSDP_INLINE V load(const float* from) {
  V v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}
SFSDP_INLINE void store(float* to, V v) { __builtin_memcpy(to, &v, sizeof v); }
SFSDP_INLINE V all(float x) { return V{} + x; }
SFSDP_INLINE I bits(V v) { return reinterpret_cast<I>(v); }
SFSDP_INLINE V from_bits(I v) { return reinterpret_cast<V>(v); }
SFSDP_INLINE V larger(V a, V b) { return a != a || a > b ? a : b; }  // a nan stays

SFSDP_INLINE float sum_of_lanes(V v) {
  float sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += v[lane];
  return sum;
}

// SFSDP_SQRT(v) where no instruction is named: the square root of each lane.
[[maybe_unused]] SFSDP_INLINE V root_of_each(V v) {
  for (int lane = 0; lane < kLanes; ++lane) v[lane] = __builtin_sqrtf(v[lane]);
  return v;
}

constexpr float kMinusInfinity = -__builtin_inff();

// e^x within 1.5 units of the last place, 0 below 2^-126; a nan stays one. Up to x = 88.376, as kernels take it of what is about 0 at
// most; beyond that it is no number. The polynomial is that of Cephes (expf.c).
SFSDP_INLINE V exp(V x) {
  const V least = all(-87.33654f);   // ln(2^-126)
  const V magic = all(12582912.0f);  // 1.5 · 2^23: its sum with a number is that one rounded, in the last bits
  const V clamped = x < least ? least : x;
  const V shifted = clamped * all(1.44269504088896341f) + magic;
  const V n = shifted - magic;
  const V f =
      (clamped - n * all(0.693359375f)) - n * all(-2.12194440e-4f);  // x - n ln(2), whose first part has few bits
  V p = all(1.9875691500e-4f);
  p = p * f + all(1.3981999507e-3f);
  p = p * f + all(8.3334519073e-3f);
  p = p * f + all(4.1665795894e-2f);
  p = p * f + all(1.6666665459e-1f);
  p = p * f + all(5.0000001201e-1f);
  p = p * (f * f) + f + all(1.0f);
  const I exponent = (bits(shifted) << 23) + (127 << 23);  // the low bits are n
  return x < least ? V{} : p * from_bits(exponent);
}

SFSDP_INLINE float as_float(float x) { return x; }
SFSDP_INLINE float as_float(uint16_t bf16) {
  const uint32_t wide = static_cast<uint32_t>(bf16) << 16;
  float x;
  __builtin_memcpy(&x, &wide, sizeof x);
  return x;
}

// bf16 is a uint16_t: the upper half of a float.
SFSDP_INLINE V load(const uint16_t* from) {
  H half;
  __builtin_memcpy(&half, from, sizeof half);
  return from_bits(__builtin_convertvector(half, I) << 16);
}

// To nearest even; a nan stays one.
SFSDP_INLINE void store(uint16_t* to, V v) {
  const U b = reinterpret_cast<U>(v);
  const U rounded = (b + 0x7fff + ((b >> 16) & 1)) >> 16;
  const H half = __builtin_convertvector(v != v ? U{} + 0x7fc0 : rounded, H);
  __builtin_memcpy(to, &half, sizeof half);
}

template <class T>
T rounded(float x);
template <>
SFSDP_INLINE float rounded<float>(float x) {
  return x;
}
template <>
SFSDP_INLINE uint16_t rounded<uint16_t>(float x) {
  uint16_t all_lanes[kLanes];
  store(all_lanes, all(x));
  return all_lanes[0];
}

// The elements at even and at odd places of two vectors side by side; and the two put together again, a b a b, as two vectors.
#if SFSDP_LANES == 16
SFSDP_INLINE V even_of(V a, V b) {
  return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
}
SFSDP_INLINE V odd_of(V a, V b) {
  return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}
SFSDP_INLINE V low_of(V a, V b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
SFSDP_INLINE V high_of(V a, V b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
#elif SFSDP_LANES == 8
SFSDP_INLINE V even_of(V a, V b) { return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14); }
SFSDP_INLINE V odd_of(V a, V b) { return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15); }
SFSDP_INLINE V low_of(V a, V b) { return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
SFSDP_INLINE V high_of(V a, V b) { return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }
#elif SFSDP_LANES == 4
SFSDP_INLINE V even_of(V a, V b) { return __builtin_shufflevector(a, b, 0, 2, 4, 6); }
SFSDP_INLINE V odd_of(V a, V b) { return __builtin_shufflevector(a, b, 1, 3, 5, 7); }
SFSDP_INLINE V low_of(V a, V b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
SFSDP_INLINE V high_of(V a, V b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
#endif

// Elements i to i + kLanes - 1 of a row; beyond its end 0.
template <class T>
SFSDP_INLINE V part(const T* row, int64_t i, int64_t width) {
  if (i + kLanes <= width) return load(row + i);
  V v = V{};
  for (int lane = 0; i + lane < width; ++lane) v[lane] = as_float(row[i + lane]);
  return v;
}
template <class T>
SFSDP_INLINE void store_part(T* row, int64_t i, int64_t width, V v) {
  if (i + kLanes <= width) return store(row + i, v);
  for (int lane = 0; i + lane < width; ++lane) row[i + lane] = rounded<T>(v[lane]);
}

}  // namespace
}  // namespace sfsdp::kernels
// NOLINTEND
