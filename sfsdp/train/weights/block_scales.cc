// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/weights/block_scales.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/half.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/train/weights/float_convert.h"

namespace sfsdp::train {
namespace {

constexpr std::string_view kPowersOfTwo = "F8_E8M0";

std::string text_of(const std::vector<int64_t>& shape) {
  std::vector<std::string> sizes;
  for (const int64_t size : shape) sizes.push_back(std::to_string(size));
  return "[" + join(sizes, ", ") + "]";
}

// Numbers that are converted at a time: the compiler knows how many, and takes vector instructions.
constexpr size_t kStretch = 64;

template <size_t Count>
void scale_stretch(const std::byte* in, float scale, std::byte* out) {
  uint8_t x[Count];
  float y[Count];
  std::memcpy(x, in, sizeof x);
  for (size_t i = 0; i < Count; ++i) y[i] = from_f8e4m3(x[i]) * scale;
  std::memcpy(out, y, sizeof y);
}

void scale_run(const std::byte* in, size_t count, float scale, std::byte* out) {
  size_t i = 0;
  for (; i + kStretch <= count; i += kStretch) scale_stretch<kStretch>(in + i, scale, out + i * sizeof(float));
  for (; i < count; ++i) scale_stretch<1>(in + i, scale, out + i * sizeof(float));
}

[[noreturn]] void refuse(const SafetensorsCheckpoint& checkpoint, const TensorView& tensor, const std::string& got,
                         const std::string& expected) {
  throw UserError(
      concat(checkpoint.file_of(tensor.name), ": tensor ", tensor.name, " has ", got, "\n  expected ", expected));
}

std::vector<float> values_of(const TensorView& scales) {
  std::vector<std::byte> bytes(static_cast<size_t>(scales.bytes));
  scales.read(0, bytes);
  std::vector<float> values;
  if (scales.dtype_name == kPowersOfTwo) {
    for (const std::byte exponent : bytes) values.push_back(from_f8e8m0(static_cast<uint8_t>(exponent)));
    return values;
  }
  values.resize(bytes.size() / static_cast<size_t>(ir::size_in_bytes(*scales.dtype)));
  convert_floats(bytes, *scales.dtype, std::as_writable_bytes(std::span(values)), ir::DType::f32);
  return values;
}

std::vector<float> read_scales(const SafetensorsCheckpoint& checkpoint, const TensorView& view,
                               const TensorView& scales) {
  std::vector<float> values = values_of(scales);
  const auto bad = std::ranges::find_if(values, [](float value) { return !(value >= 0) || std::isinf(value); });
  if (bad != values.end()) {
    const int64_t at = bad - values.begin(), columns = scales.shape.at(1);
    refuse(checkpoint, scales,
           concat(std::isnan(*bad) ? "nan" : std::to_string(*bad), " at [", at / columns, ", ", at % columns, "]"),
           concat("a finite scale, 0 or above, for each block of ", view.name,
                  ": the folder is damaged; write or download it again"));
  }
  return values;
}

}  // namespace

const TensorView* find_scales(const SafetensorsCheckpoint& checkpoint, const TensorView& view, const HfConfig& config) {
  if (view.dtype && is_weight_dtype(*view.dtype)) return nullptr;
  if (!config.weight_block)
    refuse(checkpoint, view, "dtype " + view.dtype_name,
           "F16, BF16, F32 or F64, as the parameter is of floating point; or F8_E4M3 with the blocks of its scales in"
           " quantization_config of config.json");
  if (view.dtype != ir::DType::f8e4m3)
    refuse(checkpoint, view, "dtype " + view.dtype_name,
           "F8_E4M3, as quantization_config of config.json says, or F16, BF16, F32 or F64");
  const auto [rows, columns] = *config.weight_block;
  if (view.shape.size() != 2)
    refuse(checkpoint, view, concat("shape ", text_of(view.shape), " and dtype ", view.dtype_name),
           concat("a matrix, as blocks of ", rows, " x ", columns, " have the scales"));
  const TensorView* scales = checkpoint.find(view.name + "_scale_inv");
  if (!scales)
    refuse(checkpoint, view, "dtype F8_E4M3 and no scales",
           concat("tensor ", view.name, "_scale_inv in the folder: float8 without its scales are", " other numbers"));
  const std::vector<int64_t> shape = {(view.shape[0] + rows - 1) / rows, (view.shape[1] + columns - 1) / columns};
  if (scales->shape != shape)
    refuse(checkpoint, *scales, "shape " + text_of(scales->shape),
           concat(text_of(shape), ": a scale for each block of ", rows, " x ", columns, " of ", text_of(view.shape)));
  if (scales->dtype_name != "F32" && scales->dtype_name != "BF16" && scales->dtype_name != "F16" &&
      scales->dtype_name != kPowersOfTwo)
    refuse(checkpoint, *scales, "dtype " + scales->dtype_name, "F32, BF16, F16 or F8_E8M0");
  return scales;
}

ScaledMatrix::ScaledMatrix(const SafetensorsCheckpoint& checkpoint, const TensorView& view, const TensorView& scales,
                           const WeightBlock& block)
    : view_(view),
      block_(block),
      columns_(view.shape.at(1)),
      columns_of_scales_(scales.shape.at(1)),
      scales_(read_scales(checkpoint, view, scales)) {}

// The float8 numbers are read into the end of `out`, and made float32 from the front: number i is written to bytes 4i to
// 4i + 4 of 4n, while the next one to be read lies at 3n + i + 1, which is not before.
void ScaledMatrix::read(uint64_t first, std::span<std::byte> out) const {
  constexpr size_t kWidth = sizeof(float);
  SFSDP_CHECK(first % kWidth == 0 && out.size() % kWidth == 0, first, " and ", out.size(), " bytes of float32");
  const auto count = static_cast<int64_t>(out.size() / kWidth), begin = static_cast<int64_t>(first / kWidth);
  const std::span<std::byte> raw = out.last(static_cast<size_t>(count));
  view_.read(static_cast<uint64_t>(begin), raw);
  for (int64_t done = 0; done < count;) {
    const int64_t row = (begin + done) / columns_, column = (begin + done) % columns_;
    const int64_t in_block = std::min(block_.columns - column % block_.columns, columns_ - column);
    const int64_t length = std::min(count - done, in_block);
    const int64_t block = row / block_.rows * columns_of_scales_ + column / block_.columns;
    scale_run(raw.data() + done, static_cast<size_t>(length), scales_[static_cast<size_t>(block)],
              out.data() + static_cast<size_t>(done) * kWidth);
    done += length;
  }
}

HfNumbers numbers_of(const SafetensorsCheckpoint& checkpoint, const TensorView& view, const TensorView* scales,
                     const HfConfig& config) {
  if (!scales) return {*view.dtype, [&view](uint64_t first, std::span<std::byte> out) { view.read(first, out); }};
  const auto matrix = std::make_shared<const ScaledMatrix>(checkpoint, view, *scales, *config.weight_block);
  return {ir::DType::f32, [matrix](uint64_t first, std::span<std::byte> out) { matrix->read(first, out); }};
}

}  // namespace sfsdp::train
