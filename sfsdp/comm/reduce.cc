// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/reduce.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/comm/chunks.h"

namespace sfsdp::comm {
namespace {

// Elements that are reduced at a time: the accumulator of a block stays in the first-level cache while the parts pass.
constexpr size_t kBlock = 1024;

// A dtype is what is stored, what sums are made in, and how to get from one to the other.
template <class T>
struct Same {
  using Stored = T;
  using Sum = T;
  static Sum widen(Stored x) { return x; }
  static Stored narrow(Sum x) { return x; }
};

// Signed overflow is undefined; unsigned sums have the bits that a wrapped signed sum has.
template <class T, class U>
struct Wrapping : Same<T> {
  static T add(T a, T b) { return static_cast<T>(static_cast<U>(a) + static_cast<U>(b)); }
};

struct BFloat16 {
  using Stored = uint16_t;
  using Sum = float;
  static float widen(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }
  static uint16_t narrow(float x) {
    const auto bits = std::bit_cast<uint32_t>(x);
    const uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    return static_cast<uint16_t>(x != x ? 0x7fc0U : rounded);  // rounding could carry a nan into infinity
  }
};

struct Float16 {
  using Stored = uint16_t;
  using Sum = float;
  // Exponents are moved by multiplying with a power of two, which also normalises subnormal numbers.
  static float widen(uint16_t x) {
    const uint32_t sign = static_cast<uint32_t>(x & 0x8000U) << 16;
    const uint32_t rest = static_cast<uint32_t>(x & 0x7fffU) << 13;
    const float moved = std::bit_cast<float>(rest) * 0x1p112F;
    const uint32_t special = std::bit_cast<uint32_t>(moved) >= 0x47800000U ? 0x7f800000U : 0U;  // 65536: inf or nan
    return std::bit_cast<float>(std::bit_cast<uint32_t>(moved) | special | sign);
  }
  static uint16_t narrow(float x) {
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
};

struct Sum {
  template <class D>
  static typename D::Sum apply(typename D::Sum a, typename D::Sum b) {
    if constexpr (requires { D::add(a, b); })
      return D::add(a, b);
    else
      return a + b;
  }
};

struct Max {
  template <class D>
  static typename D::Sum apply(typename D::Sum a, typename D::Sum b) {
    return a != a || a > b ? a : b;  // a nan in b is not less than a, so it is taken
  }
};

struct Min {
  template <class D>
  static typename D::Sum apply(typename D::Sum a, typename D::Sum b) {
    return a != a || a < b ? a : b;
  }
};

template <class D, class Op>
void reduce_as(std::span<const std::span<const std::byte>> parts, std::span<std::byte> out) {
  using Stored = typename D::Stored;
  const size_t count = out.size() / sizeof(Stored);
  std::array<Stored, kBlock> block{};  // parts need not be aligned
  std::array<typename D::Sum, kBlock> sums;
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t bytes = std::min(kBlock, count - begin) * sizeof(Stored);
    for (size_t part = 0; part < parts.size(); ++part) {
      std::memcpy(block.data(), parts[part].data() + begin * sizeof(Stored), bytes);
      // Always the whole block, the tail too: a fixed number of turns is what the compiler turns into vector code.
      if (part == 0)
        for (size_t i = 0; i < kBlock; ++i) sums[i] = D::widen(block[i]);
      else
        for (size_t i = 0; i < kBlock; ++i) sums[i] = Op::template apply<D>(sums[i], D::widen(block[i]));
    }
    for (size_t i = 0; i < kBlock; ++i) block[i] = D::narrow(sums[i]);
    std::memcpy(out.data() + begin * sizeof(Stored), block.data(), bytes);
  }
}

template <class D>
void reduce_as(std::span<const std::span<const std::byte>> parts, std::span<std::byte> out, ReduceOp op) {
  switch (op) {
    case ReduceOp::Sum: return reduce_as<D, Sum>(parts, out);
    case ReduceOp::Max: return reduce_as<D, Max>(parts, out);
    case ReduceOp::Min: return reduce_as<D, Min>(parts, out);
  }
}

}  // namespace

void reduce(std::span<const std::span<const std::byte>> parts, std::span<std::byte> out, ir::DType dtype, ReduceOp op) {
  SFSDP_CHECK(!parts.empty(), "nothing to reduce");
  for (const auto& part : parts) SFSDP_CHECK(part.size() == out.size(), part.size(), " and ", out.size(), " bytes");
  check_reducible(out.size(), dtype);
  if (parts.size() == 1) return copy(parts[0], out);
  switch (dtype) {
    case ir::DType::f64: return reduce_as<Same<double>>(parts, out, op);
    case ir::DType::f32: return reduce_as<Same<float>>(parts, out, op);
    case ir::DType::bf16: return reduce_as<BFloat16>(parts, out, op);
    case ir::DType::f16: return reduce_as<Float16>(parts, out, op);
    case ir::DType::i64: return reduce_as<Wrapping<int64_t, uint64_t>>(parts, out, op);
    case ir::DType::i32: return reduce_as<Wrapping<int32_t, uint32_t>>(parts, out, op);
    default: return;
  }
}

void check_reducible(size_t bytes, ir::DType dtype) {
  using ir::DType;
  for (const DType known : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32})
    if (dtype == known) {
      SFSDP_CHECK(bytes % static_cast<size_t>(ir::size_in_bytes(dtype)) == 0, bytes, " bytes of ",
                  ir::to_string(dtype));
      return;
    }
  throw UserError("reduction of " + std::string(ir::to_string(dtype)) +
                  "\n  expected f64, f32, bf16, f16, i64 or i32; cast before the collective");
}

}  // namespace sfsdp::comm
