// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/reduce.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/half.h"
#include "sfsdp/comm/chunks.h"

namespace sfsdp::comm {
namespace {

// Elements that are reduced at a time: the accumulator of a block stays in the first-level cache while the parts pass.
constexpr size_t kBlock = 256;

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
T load(const std::byte* from, size_t index) {
  T value;
  std::memcpy(&value, from + index * sizeof value, sizeof value);
  return value;
}

// A block always, of a fixed number of turns, which is what the compiler turns into vector code. One function for all blocks: which
// of two nans a sum keeps is up to the order of operands that the compiler has chosen.
template <class D, class Op>
[[gnu::noinline]] void add_block(typename D::Sum* __restrict sums, const std::byte* __restrict part) {
  for (size_t i = 0; i < kBlock; ++i)
    sums[i] = Op::template apply<D>(sums[i], D::widen(load<typename D::Stored>(part, i)));
}

template <class D, class Op>
void reduce_as(std::span<const std::span<const std::byte>> parts, std::span<std::byte> out) {
  using Stored = typename D::Stored;
  constexpr size_t kSize = sizeof(Stored);
  const size_t count = out.size() / kSize;
  std::array<typename D::Sum, kBlock> sums;
  std::array<std::byte, kBlock * kSize> last{};  // what is no whole block
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t bytes = std::min(kBlock, count - begin) * kSize;
    const bool whole = bytes == last.size();
    const auto block_of = [&](std::span<const std::byte> part) {
      const std::byte* from = part.data() + begin * kSize;
      return whole ? from : static_cast<const std::byte*>(std::memcpy(last.data(), from, bytes));
    };
    const std::byte* first = block_of(parts[0]);
    for (size_t i = 0; i < kBlock; ++i) sums[i] = D::widen(load<Stored>(first, i));
    for (const auto& part : parts.subspan(1)) add_block<D, Op>(sums.data(), block_of(part));
    std::byte* to = whole ? out.data() + begin * kSize : last.data();
    for (size_t i = 0; i < kBlock; ++i) {
      const Stored value = D::narrow(sums[i]);
      std::memcpy(to + i * kSize, &value, kSize);
    }
    if (!whole) std::memcpy(out.data() + begin * kSize, last.data(), bytes);
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
