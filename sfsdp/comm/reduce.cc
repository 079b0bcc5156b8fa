// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/reduce.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/half.h"
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
  static float widen(uint16_t x) { return from_bf16(x); }
  static uint16_t narrow(float x) { return to_bf16(x); }
};

struct Float16 {
  using Stored = uint16_t;
  using Sum = float;
  static float widen(uint16_t x) { return from_f16(x); }
  static uint16_t narrow(float x) { return to_f16(x); }
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

// Parts need not be aligned.
template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class D, class Op>
void reduce_as(std::span<const std::span<const std::byte>> parts, std::span<std::byte> out) {
  using Stored = typename D::Stored;
  using Accumulator = typename D::Sum;
  constexpr size_t kSize = sizeof(Stored);
  const size_t count = out.size() / kSize;
  std::array<Accumulator, kBlock> sums;
  const auto block = [&](size_t begin, auto n) {
    const auto add = [&](const std::byte* next) {
      for (size_t i = 0; i < n; ++i) sums[i] = Op::template apply<D>(sums[i], D::widen(load<Stored>(next + i * kSize)));
    };
    const std::byte* first = parts[0].data() + begin * kSize;
    for (size_t i = 0; i < n; ++i) sums[i] = D::widen(load<Stored>(first + i * kSize));
    for (const auto& part : parts.subspan(1)) add(part.data() + begin * kSize);
    std::byte* to = out.data() + begin * kSize;
    for (size_t i = 0; i < n; ++i) {
      const Stored value = D::narrow(sums[i]);
      std::memcpy(to + i * kSize, &value, kSize);
    }
  };
  size_t begin = 0;
  // A fixed number of turns is what the compiler turns into vector code.
  for (; begin + kBlock <= count; begin += kBlock) block(begin, std::integral_constant<size_t, kBlock>());
  block(begin, count - begin);
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
