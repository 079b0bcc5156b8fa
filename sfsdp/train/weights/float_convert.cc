// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/weights/float_convert.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "sfsdp/base/check.h"
#include "sfsdp/base/half.h"

namespace sfsdp::train {
namespace {

// A stored dtype: how it becomes a float or double and comes back, and its largest finite number.
struct F64 {
  using Stored = double;
  static double widen(double x) { return x; }
  static double narrow(double x) { return x; }
  static constexpr double kLargest = std::numeric_limits<double>::max();
};
struct F32 {
  using Stored = float;
  static float widen(float x) { return x; }
  static float narrow(float x) { return x; }
  static constexpr float kLargest = std::numeric_limits<float>::max();
};
struct BF16 {
  using Stored = uint16_t;
  static float widen(uint16_t x) { return from_bf16(x); }
  static uint16_t narrow(float x) { return to_bf16(x); }
  static constexpr float kLargest = 0x1.fep127F;
};
struct F16 {
  using Stored = uint16_t;
  static float widen(uint16_t x) { return from_f16(x); }
  static uint16_t narrow(float x) { return to_f16(x); }
  static constexpr float kLargest = 65504.0F;
};

// Elements that are converted at a time: their number is known to the compiler, which so takes vector instructions.
constexpr size_t kConvertBlock = 64;

// Loads and stores by memcpy: a file's bytes need not be aligned.
template <class In, class Out, size_t Count>
int64_t convert_block(const std::byte* in, std::byte* out) {
  typename In::Stored x[Count];
  typename Out::Stored y[Count];
  std::memcpy(x, in, sizeof x);
  for (size_t i = 0; i < Count; ++i) {
    if constexpr (sizeof(typename Out::Stored) == 8)
      y[i] = In::widen(x[i]);
    else
      y[i] = Out::narrow(static_cast<float>(In::widen(x[i])));
  }
  int32_t lost = 0;
  if constexpr (In::kLargest > Out::kLargest) {
    for (size_t i = 0; i < Count; ++i)  // a loop of its own: both take vector instructions
      lost += static_cast<int32_t>(std::abs(In::widen(x[i])) <= In::kLargest) &
              static_cast<int32_t>(std::abs(Out::widen(y[i])) > Out::kLargest);
  }
  std::memcpy(out, y, sizeof y);
  return lost;
}

template <class In, class Out>
int64_t convert_as(const std::byte* in, std::byte* out, size_t count) {
  constexpr size_t kIn = sizeof(typename In::Stored), kOut = sizeof(typename Out::Stored);
  int64_t lost = 0;
  size_t i = 0;
  for (; i + kConvertBlock <= count; i += kConvertBlock)
    lost += convert_block<In, Out, kConvertBlock>(in + i * kIn, out + i * kOut);
  for (; i < count; ++i) lost += convert_block<In, Out, 1>(in + i * kIn, out + i * kOut);
  return lost;
}

// Block by block, which takes vector instructions; then the place in the block that has one.
template <class In>
std::optional<int64_t> first_not_finite_of(std::span<const std::byte> in) {
  constexpr size_t kSize = sizeof(typename In::Stored);
  const size_t count = in.size() / kSize;
  for (size_t begin = 0; begin < count; begin += kConvertBlock) {
    typename In::Stored x[kConvertBlock] = {};
    std::memcpy(x, in.data() + begin * kSize, std::min(kConvertBlock, count - begin) * kSize);
    int32_t wrong = 0;
    for (const auto& value : x) wrong += static_cast<int32_t>(!(std::abs(In::widen(value)) <= In::kLargest));
    for (size_t i = 0; i < kConvertBlock && wrong > 0; ++i)
      if (!(std::abs(In::widen(x[i])) <= In::kLargest)) return static_cast<int64_t>(begin + i);
  }
  return std::nullopt;
}

using Convert = int64_t (*)(const std::byte*, std::byte*, size_t);

template <class In>
Convert convert_from(ir::DType out) {
  if (out == ir::DType::f64) return convert_as<In, F64>;
  if (out == ir::DType::f32) return convert_as<In, F32>;
  if (out == ir::DType::bf16) return convert_as<In, BF16>;
  return convert_as<In, F16>;
}

Convert convert_of(ir::DType in, ir::DType out) {
  SFSDP_CHECK(is_weight_dtype(in) && is_weight_dtype(out), ir::to_string(in), " to ", ir::to_string(out));
  if (in == ir::DType::f64) return convert_from<F64>(out);
  if (in == ir::DType::f32) return convert_from<F32>(out);
  if (in == ir::DType::bf16) return convert_from<BF16>(out);
  return convert_from<F16>(out);
}

constexpr int64_t kTile = 32;  // 32 x 32 elements of 8 bytes are 8 KiB: both sides stay in the first-level cache

// out[c · out_stride + r] = tile[r · kTile + c], elements of Size bytes.
template <size_t Size>
void scatter_tile(const std::byte* tile, int64_t rows, int64_t columns, std::byte* out, int64_t out_stride) {
  for (int64_t c = 0; c < columns; ++c)
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(out + static_cast<size_t>(c * out_stride + r) * Size,
                  tile + static_cast<size_t>(r * kTile + c) * Size, Size);
}

}  // namespace

bool is_weight_dtype(ir::DType dtype) {
  return dtype == ir::DType::f64 || dtype == ir::DType::f32 || dtype == ir::DType::bf16 || dtype == ir::DType::f16;
}

int64_t convert_floats(std::span<const std::byte> in, ir::DType in_dtype, std::span<std::byte> out,
                       ir::DType out_dtype) {
  const auto in_size = static_cast<size_t>(ir::size_in_bytes(in_dtype));
  const auto out_size = static_cast<size_t>(ir::size_in_bytes(out_dtype));
  const size_t count = in.size() / in_size;
  SFSDP_CHECK(in.size() == count * in_size && out.size() == count * out_size, in.size(), " bytes of ",
              ir::to_string(in_dtype), " into ", out.size(), " of ", ir::to_string(out_dtype));
  if (count == 0) return 0;
  if (in_dtype == out_dtype) {
    std::memcpy(out.data(), in.data(), in.size());
    return 0;
  }
  return convert_of(in_dtype, out_dtype)(in.data(), out.data(), count);
}

std::optional<int64_t> first_not_finite(std::span<const std::byte> in, ir::DType dtype) {
  SFSDP_CHECK(is_weight_dtype(dtype), ir::to_string(dtype));
  if (dtype == ir::DType::f64) return first_not_finite_of<F64>(in);
  if (dtype == ir::DType::f32) return first_not_finite_of<F32>(in);
  if (dtype == ir::DType::bf16) return first_not_finite_of<BF16>(in);
  return first_not_finite_of<F16>(in);
}

int64_t convert_transposed(std::span<const std::byte> in, ir::DType in_dtype, int64_t in_stride, int64_t rows,
                           int64_t columns, std::span<std::byte> out, ir::DType out_dtype, int64_t out_stride) {
  if (rows == 0 || columns == 0) return 0;
  const int64_t in_size = ir::size_in_bytes(in_dtype), out_size = ir::size_in_bytes(out_dtype);
  const auto needs = [](int64_t lines, int64_t stride, int64_t line) { return (lines - 1) * stride + line; };
  SFSDP_CHECK(static_cast<int64_t>(in.size()) >= needs(rows, in_stride, columns) * in_size &&
                  static_cast<int64_t>(out.size()) >= needs(columns, out_stride, rows) * out_size,
              rows, " x ", columns, " elements of ", in.size(), " bytes into ", out.size());
  const auto scatter = out_size == 2 ? scatter_tile<2> : out_size == 4 ? scatter_tile<4> : scatter_tile<8>;
  std::array<std::byte, kTile * kTile * 8> tile;
  int64_t lost = 0;
  for (int64_t r = 0; r < rows; r += kTile)
    for (int64_t c = 0; c < columns; c += kTile) {
      const int64_t height = std::min(kTile, rows - r), width = std::min(kTile, columns - c);
      for (int64_t i = 0; i < height; ++i)
        lost += convert_floats(
            in.subspan(static_cast<size_t>(((r + i) * in_stride + c) * in_size), static_cast<size_t>(width * in_size)),
            in_dtype,
            std::span(tile).subspan(static_cast<size_t>(i * kTile * out_size), static_cast<size_t>(width * out_size)),
            out_dtype);
      scatter(tile.data(), height, width, out.data() + (c * out_stride + r) * out_size, out_stride);
    }
  return lost;
}

}  // namespace sfsdp::train
