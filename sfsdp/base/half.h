// SPDX-License-Identifier: BSD-3-Clause
// The bits of bfloat16 and IEEE half numbers, from and to float; narrowing rounds to nearest, ties to even. Those of two
// 8-bit formats, to float.
#pragma once

#include <bit>
#include <cstdint>

namespace sfsdp {

inline float from_bf16(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

inline uint16_t to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  return static_cast<uint16_t>(x != x ? 0x7fc0U : rounded);  // rounding could carry a nan into infinity
}

// Exponents are moved by multiplying with a power of two, which also normalises subnormal numbers.
inline float from_f16(uint16_t x) {
  const uint32_t sign = static_cast<uint32_t>(x & 0x8000U) << 16;
  const uint32_t rest = static_cast<uint32_t>(x & 0x7fffU) << 13;
  const float moved = std::bit_cast<float>(rest) * 0x1p112F;
  const uint32_t special = std::bit_cast<uint32_t>(moved) >= 0x47800000U ? 0x7f800000U : 0U;  // 65536: inf or nan
  return std::bit_cast<float>(std::bit_cast<uint32_t>(moved) | special | sign);
}

inline uint16_t to_f16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 16) & 0x8000U;
  const uint32_t rest = bits & 0x7fffffffU;
  uint32_t half;
  if (rest > 0x7f800000U) {
    half = 0x7e00U;
  } else if (rest >= 0x477ff000U) {  // 65520, halfway between the largest number and 65536
    half = 0x7c00U;
  } else if (rest < 0x38800000U) {  // below 2^-14: adding 0.5 leaves the subnormal's bits, rounded, at the bottom
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(rest) + 0.5F) - 0x3f000000U;
  } else {
    half = (rest + 0xfffU + ((rest >> 13) & 1U) - 0x38000000U) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}

// e4m3 as LibTorch's Float8_e4m3fn: no infinity, 448 is the largest; all bits but the sign set is no number.
// Source: OCP 8-bit floating point specification, arXiv:2209.05433.
inline float from_f8e4m3(uint8_t x) {
  const uint32_t sign = static_cast<uint32_t>(x & 0x80U) << 24;
  const uint32_t rest = static_cast<uint32_t>(x & 0x7fU);
  const float moved = std::bit_cast<float>(rest << 20) * 0x1p120F;
  const uint32_t nan = rest == 0x7fU ? 0x7fc00000U : 0U;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(moved) | nan | sign);
}

// e8m0: an exponent alone, 2^(x - 127); 255 is no number. Source: OCP Microscaling formats.
inline float from_f8e8m0(uint8_t x) {
  const uint32_t exponent = static_cast<uint32_t>(x) << 23;
  constexpr uint32_t kSmallest = 0x00400000U;  // 2^-127, a subnormal number
  constexpr uint32_t kNan = 0x7fc00000U;
  return std::bit_cast<float>(x == 0 ? kSmallest : x == 255 ? kNan : exponent);
}

}  // namespace sfsdp
