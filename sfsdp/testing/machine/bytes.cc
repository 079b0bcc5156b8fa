// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/machine/bytes.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/half.h"
#include "sfsdp/ir/view_geometry.h"

namespace sfsdp::plan::machine {
namespace {

using ir::DType, ir::Type;

template <class T>
T read(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <class T>
void write(T value, std::byte* to) {
  std::memcpy(to, &value, sizeof value);
}

// e4m3fn has no infinity and one nan per sign; e5m2 is laid out as IEEE has it.
double decode_f8(uint8_t bits, int fraction_bits, int bias, bool has_infinity) {
  const int exponent = (bits & 0x7f) >> fraction_bits, fraction = bits & ((1 << fraction_bits) - 1);
  const int top = (1 << (7 - fraction_bits)) - 1;
  const double sign = (bits & 0x80) != 0 ? -1 : 1;
  if (exponent == top && has_infinity)
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  if (exponent == top && fraction == (1 << fraction_bits) - 1) return std::numeric_limits<double>::quiet_NaN();
  const double whole = fraction + (exponent > 0 ? 1 << fraction_bits : 0);
  return sign * std::ldexp(whole, std::max(exponent, 1) - bias - fraction_bits);
}
double decode_e4m3(uint8_t bits) { return decode_f8(bits, 3, 7, false); }
double decode_e5m2(uint8_t bits) { return decode_f8(bits, 2, 15, true); }

uint8_t encode_f8(double value, double (*decode_one)(uint8_t)) {
  for (int bits = 0; bits < 256; ++bits) {
    const double held = decode_one(static_cast<uint8_t>(bits));
    if (held == value && std::signbit(held) == std::signbit(value)) return static_cast<uint8_t>(bits);
    if (std::isnan(held) && std::isnan(value)) return static_cast<uint8_t>(bits);
  }
  SFSDP_CHECK(false, value, " is no number of one byte");
  return 0;
}

}  // namespace

double decode(DType dtype, const std::byte* from) {
  switch (dtype) {
    case DType::f64: return read<double>(from);
    case DType::f32:
    case DType::c64: return static_cast<double>(read<float>(from));
    case DType::bf16: return static_cast<double>(from_bf16(read<uint16_t>(from)));
    case DType::f16: return static_cast<double>(from_f16(read<uint16_t>(from)));
    case DType::f8e4m3: return decode_e4m3(read<uint8_t>(from));
    case DType::f8e5m2: return decode_e5m2(read<uint8_t>(from));
    case DType::i64: return static_cast<double>(read<int64_t>(from));
    case DType::i32: return read<int32_t>(from);
    case DType::i16: return read<int16_t>(from);
    case DType::i8: return read<int8_t>(from);
    case DType::u8:
    case DType::b1: return read<uint8_t>(from);
  }
  return 0;
}

constexpr double kExact = 9'007'199'254'740'992;  // 2^53: beyond it a double is no longer each integer

void encode(DType dtype, double value, std::byte* to) {
  switch (dtype) {
    case DType::f64: return write(value, to);
    case DType::f32: return write(static_cast<float>(value), to);
    case DType::c64: return write(std::array<float, 2>{static_cast<float>(value), 0}, to);
    case DType::bf16: return write(to_bf16(static_cast<float>(value)), to);
    case DType::f16: return write(to_f16(static_cast<float>(value)), to);
    case DType::f8e4m3: return write(encode_f8(value, &decode_e4m3), to);
    case DType::f8e5m2: return write(encode_f8(value, &decode_e5m2), to);
    case DType::i64:
      if (!(std::abs(value) <= kExact))
        throw UserError(
            concat("a kernel makes the i64 ", value, "\n  expected at most 2^53: numbers are doubles here"));
      return write(static_cast<int64_t>(value), to);
    case DType::i32: return write(static_cast<int32_t>(value), to);
    case DType::i16: return write(static_cast<int16_t>(value), to);
    case DType::i8: return write(static_cast<int8_t>(value), to);
    case DType::u8:
    case DType::b1: return write(static_cast<uint8_t>(value), to);
  }
}

std::vector<int64_t> offsets_of(const Type& type) {
  const std::vector<int64_t> strides = ir::strides_of(type), shape = type.shape();
  const int64_t size = ir::size_in_bytes(type.dtype);
  const int64_t count = type.numel();
  std::vector<int64_t> offsets, index(shape.size());
  offsets.reserve(static_cast<size_t>(count));
  int64_t offset = 0;
  for (int64_t i = 0; i < count; ++i) {
    offsets.push_back(offset * size);
    for (size_t d = shape.size(); d-- > 0;) {  // count up, the last dimension first
      offset += strides[d];
      if (++index[d] < shape[d]) break;
      offset -= shape[d] * strides[d];
      index[d] = 0;
    }
  }
  return offsets;
}

ir::interp::Array load(const Type& type, std::span<const int64_t> offsets, const std::byte* memory) {
  ir::interp::Array array{type.dtype, type.shape(), {}};
  array.data.reserve(offsets.size());
  for (const int64_t offset : offsets) array.data.push_back(decode(type.dtype, memory + offset));
  return array;
}

void store(DType dtype, const ir::interp::Array& array, std::span<const int64_t> offsets, std::byte* memory,
           std::span<const char> which) {
  for (size_t i = 0; i < offsets.size(); ++i)
    if (which.empty() || which[i] != 0) encode(dtype, array.data[i], memory + offsets[i]);
}

}  // namespace sfsdp::plan::machine
