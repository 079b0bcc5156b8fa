// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/weights/block_scales.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>
#include <string>

#include "sfsdp/base/error.h"
#include "sfsdp/base/half.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/plan/common_runs.h"
#include "sfsdp/testing/temporary_folder.h"

namespace sfsdp::train::block_scales_test {
namespace {

struct Tensor {
  std::string name, dtype, shape, bytes;
};

// A folder with one file, the tensors in this order.
class Folder {
 public:
  explicit Folder(const std::vector<Tensor>& tensors) {
    std::string header, data;
    for (const auto& [name, dtype, shape, bytes] : tensors) {
      header += concat(header.empty() ? "{" : ",", '"', name, R"(":{"dtype":")", dtype, R"(","shape":)", shape,
                       R"(,"data_offsets":[)", data.size(), ',', data.size() + bytes.size(), "]}");
      data += bytes;
    }
    header += "}";
    const uint64_t size = header.size();
    std::string length(8, '\0');
    std::memcpy(length.data(), &size, 8);
    path_ = folder_.write("model.safetensors", length + header + data);
  }
  const std::string& path() const { return path_; }
  SafetensorsCheckpoint open() const { return SafetensorsCheckpoint::open(folder_.path()); }

 private:
  testing::TemporaryFolder folder_;
  std::string path_;
};

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

HfConfig config_of(int64_t rows, int64_t columns) {
  HfConfig config;
  config.weight_block = {rows, columns};
  return config;
}

// float8 bits from their definition: (-1)^s 2^(e - 7) (1 + m / 8), and 2^-6 m / 8 where e is 0.
double value_of(uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  const double size = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return bits & 0x80 ? -size : size;
}

// A matrix of any finite bits, and scales of 24 bits of which any product is rounded.
struct Matrix {
  int64_t rows, columns, block_rows, block_columns;
  std::vector<uint8_t> bits;
  std::vector<float> scales;

  Matrix(int64_t r, int64_t c, int64_t br, int64_t bc) : rows(r), columns(c), block_rows(br), block_columns(bc) {
    std::mt19937 random(11);
    for (int64_t i = 0; i < rows * columns; ++i) {
      auto x = static_cast<uint8_t>(random());
      if ((x & 0x7f) == 0x7f) x = 1;
      bits.push_back(x);
    }
    for (int64_t i = 0; i < scale_rows() * scale_columns(); ++i)
      scales.push_back(std::ldexp(static_cast<float>(random() % (1 << 24) + 1), -30));
  }
  int64_t scale_rows() const { return (rows + block_rows - 1) / block_rows; }
  int64_t scale_columns() const { return (columns + block_columns - 1) / block_columns; }
  float at(int64_t row, int64_t column) const {
    const float scale = scales[static_cast<size_t>(row / block_rows * scale_columns() + column / block_columns)];
    return static_cast<float>(value_of(bits[static_cast<size_t>(row * columns + column)]) * static_cast<double>(scale));
  }
  Tensor weight() const { return {"w.weight", "F8_E4M3", concat("[", rows, ",", columns, "]"), bytes_of(bits)}; }
  Tensor scale(const std::string& dtype = "F32", const std::string& bytes = "") const {
    return {"w.weight_scale_inv", dtype, concat("[", scale_rows(), ",", scale_columns(), "]"),
            bytes.empty() ? bytes_of(scales) : bytes};
  }
  HfConfig config() const { return config_of(block_rows, block_columns); }
};

std::vector<Matrix> matrices() {
  return {{9, 10, 4, 4}, {8, 8, 8, 8}, {3, 5, 128, 128}, {1, 7, 2, 3}, {130, 257, 128, 128}, {20, 200, 1, 70}};
}

std::string refusal(const std::vector<Tensor>& tensors, const HfConfig& config) {
  const Folder folder(tensors);
  const auto checkpoint = folder.open();
  try {
    const TensorView& view = checkpoint.at("w.weight");
    numbers_of(checkpoint, view, find_scales(checkpoint, view, config), config);
  } catch (const UserError& error) {
    const std::string text = error.what(), file = folder.path() + ": ";
    REQUIRE(text.starts_with(file));
    return text.substr(file.size());
  }
  return "";
}

}  // namespace

TEST_CASE("block_scales: any box of a matrix, by any staging, has float8 times the scale of its block, rounded once") {
  std::mt19937 random(3);
  const auto below = [&](int64_t bound) { return static_cast<int64_t>(random() % static_cast<uint64_t>(bound)); };
  for (const Matrix& m : matrices()) {
    const Folder folder({m.scale(), m.weight()});
    const auto checkpoint = folder.open();
    const TensorView& view = checkpoint.at("w.weight");
    const HfConfig config = m.config();
    const HfNumbers numbers = numbers_of(checkpoint, view, find_scales(checkpoint, view, config), config);
    CHECK(numbers.dtype == ir::DType::f32);
    const std::vector<int64_t> shape = {m.rows, m.columns};
    for (int trial = 0; trial < 60; ++trial) {
      plan::Box box{{{below(m.rows), 0}, {below(m.columns), 0}}, {}};
      for (size_t d : {0, 1}) box.dims[d].length = 1 + below(shape[d] - box.dims[d].offset);
      const int64_t numel = plan::elements_of(box.dims);
      box.flat.offset = below(numel);
      box.flat.length = 1 + below(numel - box.flat.offset);
      std::vector<float> same(static_cast<size_t>(box.flat.length));
      std::vector<double> wider(same.size());
      std::vector<std::byte> staging(static_cast<size_t>(4 << (trial % 9)));
      HfTensor place;
      CHECK(copy_from_hf(place, shape, box, numbers.read, numbers.dtype, staging,
                         std::as_writable_bytes(std::span(same)), ir::DType::f32) == 0);
      copy_from_hf(place, shape, box, numbers.read, numbers.dtype, staging, std::as_writable_bytes(std::span(wider)),
                   ir::DType::f64);
      for (int64_t i = 0; i < box.flat.length; ++i) {
        const int64_t in_box = box.flat.offset + i, width = box.dims[1].length;
        const float expected = m.at(box.dims[0].offset + in_box / width, box.dims[1].offset + in_box % width);
        REQUIRE(same[static_cast<size_t>(i)] == expected);
        REQUIRE(wider[static_cast<size_t>(i)] == static_cast<double>(expected));
      }
    }
  }
}

TEST_CASE("block_scales: rows of heads and transposes are those of the numbers, each with its own block's scale") {
  const Matrix m(12, 10, 5, 4);
  const Folder folder({m.scale(), m.weight()});
  const auto checkpoint = folder.open();
  const HfConfig config = m.config();
  const TensorView& view = checkpoint.at("w.weight");
  const HfNumbers numbers = numbers_of(checkpoint, view, find_scales(checkpoint, view, config), config);
  std::vector<float> ours(120);
  std::vector<std::byte> staging(40);
  HfTensor place;
  place.transform = HfTensor::PermuteHeads;
  place.heads = 2;
  copy_from_hf(place, {12, 10}, plan::whole_box({12, 10}), numbers.read, numbers.dtype, staging,
               std::as_writable_bytes(std::span(ours)), ir::DType::f32);
  const int64_t from[] = {0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11};  // pairs side by side, of halves of a head's 6 rows
  for (int64_t r = 0; r < 12; ++r)
    for (int64_t c = 0; c < 10; ++c) REQUIRE(ours[static_cast<size_t>(r * 10 + c)] == m.at(from[r], c));
  place.transform = HfTensor::Transpose;
  copy_from_hf(place, {10, 12}, plan::whole_box({10, 12}), numbers.read, numbers.dtype, staging,
               std::as_writable_bytes(std::span(ours)), ir::DType::f32);
  for (int64_t r = 0; r < 10; ++r)
    for (int64_t c = 0; c < 12; ++c) REQUIRE(ours[static_cast<size_t>(r * 12 + c)] == m.at(c, r));
}

TEST_CASE("block_scales: of a matrix only the bytes of what is asked for are read") {
  const Matrix m(64, 32, 16, 16);
  const Folder folder({m.scale(), m.weight()});
  const auto checkpoint = folder.open();
  const TensorView& view = checkpoint.at("w.weight");
  const HfConfig config = m.config();
  const HfNumbers numbers = numbers_of(checkpoint, view, find_scales(checkpoint, view, config), config);
  // The file ends after row 10: rows before can be read, no other.
  std::filesystem::resize_file(folder.path(), std::filesystem::file_size(folder.path()) - 53 * 32);
  std::vector<float> row(32);
  const auto out = std::as_writable_bytes(std::span(row));
  numbers.read(10 * 32 * 4, out);
  for (int64_t c = 0; c < 32; ++c) CHECK(row[static_cast<size_t>(c)] == m.at(10, c));
  CHECK_THROWS_WITH_AS(numbers.read(10 * 32 * 4 + 4, out), doctest::Contains("w.weight"), UserError);
}

TEST_CASE("block_scales: scales in bfloat16, half precision and as powers of two") {
  Matrix m(9, 10, 4, 4);
  const auto expect = [&](const std::string& dtype, const std::string& bytes) {
    CAPTURE(dtype);
    const Folder folder({m.scale(dtype, bytes), m.weight()});
    const auto checkpoint = folder.open();
    const HfConfig config = m.config();
    const TensorView& view = checkpoint.at("w.weight");
    const HfNumbers numbers = numbers_of(checkpoint, view, find_scales(checkpoint, view, config), config);
    std::vector<float> all(90);
    numbers.read(0, std::as_writable_bytes(std::span(all)));
    for (int64_t i = 0; i < 90; ++i) REQUIRE(all[static_cast<size_t>(i)] == m.at(i / 10, i % 10));
  };
  std::vector<uint16_t> halves;
  std::vector<uint8_t> exponents;
  for (size_t i = 0; i < m.scales.size(); ++i) {
    m.scales[i] = std::ldexp(static_cast<float>(100 + 7 * i), -10);  // 8 bits
    halves.push_back(to_bf16(m.scales[i]));
  }
  expect("BF16", bytes_of(halves));
  for (size_t i = 0; i < m.scales.size(); ++i) halves[i] = to_f16(m.scales[i]);
  expect("F16", bytes_of(halves));
  for (size_t i = 0; i < m.scales.size(); ++i) {
    exponents.push_back(static_cast<uint8_t>(120 + i));
    m.scales[i] = std::ldexp(1.0F, static_cast<int>(i) - 7);
  }
  expect("F8_E8M0", bytes_of(exponents));
}

TEST_CASE("block_scales: bits that are no number stay none") {
  CHECK(std::isnan(from_f8e4m3(0x7f)));
  CHECK(std::isnan(from_f8e4m3(0xff)));
  CHECK(from_f8e4m3(0x7e) == 448);
  CHECK(from_f8e4m3(0x01) == 0x1p-9F);
  CHECK(std::signbit(from_f8e4m3(0x80)));
  CHECK(std::isnan(from_f8e8m0(255)));
  CHECK(from_f8e8m0(254) == 0x1p127F);
  CHECK(from_f8e8m0(1) == 0x1p-126F);
  CHECK(from_f8e8m0(0) == 0x1p-127F);
}

TEST_CASE("block_scales: a tensor in a dtype of weights has none, whatever the config says") {
  const Folder folder({{"w.weight", "BF16", "[2,3]", std::string(12, 'x')}});
  const auto checkpoint = folder.open();
  CHECK(find_scales(checkpoint, checkpoint.at("w.weight"), config_of(2, 2)) == nullptr);
  const HfNumbers numbers = numbers_of(checkpoint, checkpoint.at("w.weight"), nullptr, config_of(2, 2));
  CHECK(numbers.dtype == ir::DType::bf16);
  std::string two(2, '\0');
  numbers.read(10, std::as_writable_bytes(std::span(two)));
  CHECK(two == "xx");
}

TEST_CASE("block_scales: what cannot be read as float8 in blocks is refused by name") {
  const Matrix m(9, 10, 4, 4);
  CHECK(refusal({m.weight()}, m.config()) ==
        "tensor w.weight has dtype F8_E4M3 and no scales\n  expected tensor w.weight_scale_inv in the folder: float8 "
        "without its scales are other numbers");
  CHECK(
      refusal({m.weight(), m.scale()}, HfConfig{}) ==
      "tensor w.weight has dtype F8_E4M3\n  expected F16, BF16, F32 or F64, as the parameter is of floating point; or "
      "F8_E4M3 with the blocks of its scales in quantization_config of config.json");
  Tensor weight = m.weight(), scale = m.scale();
  weight.dtype = "F8_E5M2";
  CHECK(refusal({weight, scale}, m.config()) ==
        "tensor w.weight has dtype F8_E5M2\n  expected F8_E4M3, as quantization_config of config.json says, or F16, "
        "BF16, F32 or F64");
  weight.dtype = "I8";
  CHECK(refusal({weight, scale}, m.config()).starts_with("tensor w.weight has dtype I8\n"));
  for (const char* shape : {"[3,4]", "[9]", "[1,9]", "[3,3,1]"}) {
    scale.shape = shape;
    scale.bytes.resize(shape == std::string("[3,4]") ? 48 : 36);
    const std::string got = refusal({m.weight(), scale}, m.config());
    CAPTURE(got);
    CHECK(got.starts_with("tensor w.weight_scale_inv has shape ["));
    CHECK(got.ends_with("\n  expected [3, 3]: a scale for each block of 4 x 4 of [9, 10]"));
  }
  const auto of_dtype = [&](const char* dtype, size_t bytes) {
    return refusal({m.weight(), m.scale(dtype, std::string(bytes, '\1'))}, m.config());
  };
  CHECK(of_dtype("I32", 36) == "tensor w.weight_scale_inv has dtype I32\n  expected F32, BF16, F16 or F8_E8M0");
  CHECK(of_dtype("F64", 72).starts_with("tensor w.weight_scale_inv has dtype F64\n"));
  CHECK(of_dtype("F8_E4M3", 9).starts_with("tensor w.weight_scale_inv has dtype F8_E4M3\n"));
  CHECK(of_dtype("F8_E8M0", 9).empty());
  CHECK(of_dtype("BF16", 18).empty());
  weight = m.weight();
  weight.shape = "[90]";
  CHECK(refusal({weight, m.scale()}, m.config()) ==
        "tensor w.weight has shape [90] and dtype F8_E4M3\n  expected a matrix, as blocks of 4 x 4 have the scales");
}

TEST_CASE("block_scales: a scale that is below 0 or not finite is refused with its index and value") {
  const Matrix m(9, 10, 4, 4);
  const auto with = [&](size_t at, float value) {
    std::vector<float> scales = m.scales;
    scales.at(at) = value;
    return refusal({m.weight(), m.scale("F32", bytes_of(scales))}, m.config());
  };
  const std::string expected =
      "\n  expected a finite scale, 0 or above, for each block of w.weight: the folder is damaged; write or download "
      "it "
      "again";
  CHECK(with(5, -0.5F) == "tensor w.weight_scale_inv has -0.500000 at [1, 2]" + expected);
  CHECK(with(8, std::numeric_limits<float>::infinity()) == "tensor w.weight_scale_inv has inf at [2, 2]" + expected);
  CHECK(with(3, std::numeric_limits<float>::quiet_NaN()) == "tensor w.weight_scale_inv has nan at [1, 0]" + expected);
  CHECK(with(3, std::numeric_limits<float>::denorm_min()).empty());
  std::string exponents(9, '\x7f');
  CHECK(refusal({m.weight(), m.scale("F8_E8M0", exponents)}, m.config()).empty());
  exponents[4] = '\xff';
  CHECK(refusal({m.weight(), m.scale("F8_E8M0", exponents)}, m.config()) ==
        "tensor w.weight_scale_inv has nan at [1, 1]" + expected);
}

}  // namespace sfsdp::train::block_scales_test
