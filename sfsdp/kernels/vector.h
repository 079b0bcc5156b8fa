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

constexpr float kMinusInfinity = -__builtin_inff();

// e^x within 1.5 units of the last place, 0 below 2^-126; a nan stays one. The polynomial is that of Cephes (expf.c).
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

}  // namespace
}  // namespace sfsdp::kernels
// NOLINTEND
