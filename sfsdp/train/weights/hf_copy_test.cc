// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/weights/hf_copy.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <tuple>

#include "sfsdp/plan/common_runs.h"
#include "sfsdp/train/weights/float_convert.h"

namespace sfsdp::train::hf_copy_test {
namespace {

template <class T>
std::span<const std::byte> bytes(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}
template <class T>
std::span<std::byte> writable(std::vector<T>& values) {
  return std::as_writable_bytes(std::span(values));
}

// Where element `ours` of a rows x columns parameter lies in the checkpoint, from the written-out rule of each transform.
int64_t place_of(const HfTensor& tensor, int64_t rows, int64_t columns, int64_t ours) {
  const int64_t row = ours / columns, column = ours % columns;
  if (tensor.transform == HfTensor::Transpose) return column * rows + row;
  if (tensor.transform == HfTensor::None) return ours;
  const int64_t width = rows / tensor.heads, head = row / width, pair = row % width / 2, second = row % 2;
  return (head * width + second * width / 2 + pair) * columns + column;
}

struct Case {
  HfTensor tensor;
  std::vector<int64_t> shape;
};

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{24, 5}, {24}, {24, 70}, {66, 7}, {1, 9}, {24, 3, 2}})
    out.push_back({{"t", HfTensor::None, 0, ""}, shape});
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{24, 5}, {24}, {24, 70}})
    for (const int64_t heads : {1, 2, 3}) out.push_back({{"t", HfTensor::PermuteHeads, heads, ""}, shape});
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{24, 5}, {1, 9}, {9, 1}, {100, 70}})
    out.push_back({{"t", HfTensor::Transpose, 0, ""}, shape});
  return out;
}

int64_t columns_of(const Case& c) {
  int64_t columns = 1;
  for (size_t d = 1; d < c.shape.size(); ++d) columns *= c.shape[d];
  return columns;
}

}  // namespace

TEST_CASE("hf_copy: any range of a parameter comes from where the transform's rule says") {
  std::mt19937 random(1);
  for (const Case& c : cases()) {
    const int64_t rows = c.shape[0], columns = columns_of(c), count = rows * columns;
    std::vector<float> theirs(static_cast<size_t>(count));
    for (size_t i = 0; i < theirs.size(); ++i) theirs[i] = static_cast<float>(i);
    for (int trial = 0; trial < 40; ++trial) {
      int64_t a = static_cast<int64_t>(random() % static_cast<uint64_t>(count + 1)),
              b = static_cast<int64_t>(random() % static_cast<uint64_t>(count + 1));
      if (trial == 0) a = 0, b = count;
      const Chunk range{std::min(a, b), std::abs(a - b)};
      std::vector<double> ours(static_cast<size_t>(range.length), -1);
      std::vector<std::byte> staging(static_cast<size_t>(4 << (trial % 13)));
      const auto read = [&](uint64_t first, std::span<std::byte> out) {
        REQUIRE(first + out.size() <= bytes(theirs).size());
        REQUIRE(out.size() <= staging.size());
        std::memcpy(out.data(), bytes(theirs).data() + first, out.size());
      };
      CHECK(copy_from_hf(c.tensor, c.shape, plan::whole_box(c.shape, range), read, ir::DType::f32, staging,
                         writable(ours), ir::DType::f64) == 0);
      for (int64_t i = 0; i < range.length; ++i)
        REQUIRE(ours[static_cast<size_t>(i)] ==
                static_cast<double>(place_of(c.tensor, rows, columns, range.offset + i)));
    }
  }
}

TEST_CASE("hf_copy: ranges of all ranks fill the checkpoint's tensor, each element once, whatever the staging") {
  for (const Case& c : cases())
    for (const size_t staging_bytes : {4, 12, 100, 4096, 1 << 20})
      for (const int64_t ranks : {1, 3, 4}) {
        const int64_t rows = c.shape[0], columns = columns_of(c), count = rows * columns;
        std::vector<float> theirs(static_cast<size_t>(count), -1);
        std::vector<int> written(static_cast<size_t>(count), 0);
        std::vector<std::byte> staging(staging_bytes);
        for (int64_t rank = 0; rank < ranks; ++rank) {
          const Chunk range = chunk_of(count, ranks, rank);
          std::vector<double> ours;
          for (int64_t i = 0; i < range.length; ++i) ours.push_back(static_cast<double>(range.offset + i));
          copy_to_hf(c.tensor, c.shape, plan::whole_box(c.shape, range), bytes(ours), ir::DType::f64, ir::DType::f32,
                     staging, [&](int64_t first, std::span<const std::byte> part) {
                       REQUIRE(part.size() <= staging_bytes);
                       std::memcpy(theirs.data() + first, part.data(), part.size());
                       for (size_t i = 0; i < part.size() / 4; ++i) ++written[static_cast<size_t>(first) + i];
                     });
        }
        for (int64_t i = 0; i < count; ++i) {
          const auto at = static_cast<size_t>(place_of(c.tensor, rows, columns, i));
          REQUIRE(written[at] == 1);
          REQUIRE(theirs[at] == static_cast<float>(i));
        }
      }
}

// The place in the whole of each element of a box, in its order: element by element.
std::vector<int64_t> elements_in(const std::vector<int64_t>& shape, const std::vector<Chunk>& dims) {
  std::vector<int64_t> places = {0};
  for (size_t d = 0; d < shape.size(); ++d) {
    std::vector<int64_t> next;
    for (const int64_t place : places)
      for (int64_t i = 0; i < dims[d].length; ++i) next.push_back(place * shape[d] + dims[d].offset + i);
    places = std::move(next);
  }
  return places;
}

TEST_CASE("hf_copy: a range of any box of a parameter goes where the transform's rule says, and comes from there") {
  std::mt19937 random(5);
  const auto below = [&](int64_t bound) { return static_cast<int64_t>(random() % static_cast<uint64_t>(bound)); };
  for (const Case& c : cases())
    for (int trial = 0; trial < 150; ++trial) {
      const int64_t rows = c.shape[0], columns = columns_of(c), count = rows * columns;
      plan::Box box;
      std::vector<int64_t> of = c.shape;
      if (const auto dim = static_cast<size_t>(below(std::ssize(of))); trial % 3 == 0 && of[dim] % 2 == 0) {
        of[dim] /= 2;
        of.insert(of.begin() + static_cast<std::ptrdiff_t>(dim), 2);
        box.block_shape = of;
      }
      for (const int64_t size : of) {
        const int64_t offset = below(3) == 0 ? 0 : below(size + 1);
        box.dims.push_back({offset, offset == 0 ? size : below(size - offset + 1)});
      }
      const std::vector<int64_t> places = elements_in(of, box.dims);
      box.flat.offset = below(2) == 0 ? 0 : below(std::ssize(places) + 1);
      box.flat.length =
          below(2) == 0 ? std::ssize(places) - box.flat.offset : below(std::ssize(places) - box.flat.offset + 1);
      CAPTURE(plan::to_string(box.dims));
      CAPTURE(static_cast<int>(c.tensor.transform));
      std::vector<float> theirs(static_cast<size_t>(count), -1);
      std::vector<std::byte> staging(static_cast<size_t>(4 << below(13)));
      const bool converts = trial % 2 == 0;  // else of one dtype: straight
      std::vector<double> wide;
      std::vector<float> same;
      for (int64_t i = 0; i < box.flat.length; ++i) {
        same.push_back(static_cast<float>(places[static_cast<size_t>(box.flat.offset + i)]));
        wide.push_back(same.back());
      }
      const ir::DType dtype = converts ? ir::DType::f64 : ir::DType::f32;
      int64_t written = 0;
      copy_to_hf(c.tensor, c.shape, box, converts ? bytes(wide) : bytes(same), dtype, ir::DType::f32, staging,
                 [&](int64_t first, std::span<const std::byte> part) {
                   std::memcpy(theirs.data() + first, part.data(), part.size());
                   written += std::ssize(part) / 4;
                 });
      REQUIRE(written == box.flat.length);
      std::vector<float> expected(theirs.size(), -1);
      for (const float place : same)
        expected[static_cast<size_t>(place_of(c.tensor, rows, columns, static_cast<int64_t>(place)))] = place;
      REQUIRE(theirs == expected);
      const auto read = [&](uint64_t first, std::span<std::byte> out) {
        REQUIRE(first + out.size() <= bytes(theirs).size());
        std::memcpy(out.data(), bytes(theirs).data() + first, out.size());
      };
      std::vector<double> wide_back(wide.size(), -1);
      std::vector<float> same_back(same.size(), -1);
      copy_from_hf(c.tensor, c.shape, box, read, ir::DType::f32, staging,
                   converts ? writable(wide_back) : writable(same_back), dtype);
      REQUIRE((converts ? wide_back == wide : same_back == same));
    }
}

TEST_CASE("hf_copy: stretches are as long as they can be") {
  const auto stretches = [](const HfTensor& tensor, const std::vector<int64_t>& shape, ir::DType dtype,
                            size_t staging) {
    const std::vector<float> ours(static_cast<size_t>(shape[0] * shape[1]));
    std::vector<std::byte> buffer(staging);
    int64_t calls = 0;
    copy_to_hf(tensor, shape, plan::whole_box(shape), bytes(ours), ir::DType::f32, dtype, buffer,
               [&](int64_t, std::span<const std::byte>) { ++calls; });
    return calls;
  };
  const HfTensor none{"t", HfTensor::None, 0, ""}, heads{"t", HfTensor::PermuteHeads, 4, ""},
      transpose{"t", HfTensor::Transpose, 0, ""};
  CHECK(stretches(none, {64, 8}, ir::DType::f32, 4) == 1);  // straight from the shard
  CHECK(stretches(none, {64, 8}, ir::DType::bf16, 256) == 4);
  CHECK(stretches(heads, {64, 8}, ir::DType::f32, 2048) == 1);
  CHECK(stretches(heads, {64, 8}, ir::DType::f32, 512) == 4);  // a head of 16 rows at a time
  CHECK(stretches(transpose, {64, 8}, ir::DType::f32, 2048) == 1);
  CHECK(stretches(transpose, {64, 8}, ir::DType::f32, 512) == 4);  // whole columns: neighbours there
}

TEST_CASE(
    "hf_copy: of one dtype an import reads straight into the shard, and of a transposed matrix whole columns at once") {
  const std::vector<float> theirs(64 * 8, 1);
  const auto reads = [&](const HfTensor& tensor, ir::DType our_dtype, size_t staging_bytes,
                         const plan::Box& box = plan::whole_box({64, 8})) {
    std::vector<std::byte> staging(staging_bytes),
        ours(static_cast<size_t>(box.flat.length * ir::size_in_bytes(our_dtype)));
    int64_t calls = 0;
    const auto read = [&](uint64_t first, std::span<std::byte> out) {
      ++calls;
      std::memcpy(out.data(), bytes(theirs).data() + first, out.size());
    };
    copy_from_hf(tensor, {64, 8}, box, read, ir::DType::f32, staging, ours, our_dtype);
    return calls;
  };
  const HfTensor none{"t", HfTensor::None, 0, ""}, heads{"t", HfTensor::PermuteHeads, 4, ""},
      transpose{"t", HfTensor::Transpose, 0, ""};
  CHECK(reads(none, ir::DType::f32, 4) == 1);
  CHECK(reads(none, ir::DType::bf16, 512) == 4);
  CHECK(reads(heads, ir::DType::f32, 4) == 64);  // a row each
  CHECK(reads(transpose, ir::DType::f32, 2048) == 1);
  CHECK(reads(transpose, ir::DType::f32, 512) == 4);
  // half the columns of ours are rows side by side there, and half the rows parts of each
  plan::Box half = plan::whole_box({64, 8}, {0, 64 * 4});
  half.dims[1] = {4, 4};
  CHECK(reads(transpose, ir::DType::f32, 2048, half) == 1);
  half.dims = {{32, 32}, {0, 8}};
  CHECK(reads(transpose, ir::DType::f32, 2048, half) == 8);
  CHECK(reads(none, ir::DType::f32, 4, half) == 1);
}

TEST_CASE("float_convert: the first number that is none is found, in every dtype and wherever it stands") {
  const auto first = [](const auto& values, ir::DType dtype) { return first_not_finite(bytes(values), dtype); };
  for (const size_t at : {0, 1, 63, 64, 4095, 4096, 9999}) {
    CAPTURE(at);
    for (const double value : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
      std::vector<double> f64(10000, 1e308);
      std::vector<float> f32(10000, -3e38F);
      CHECK_FALSE(first(f64, ir::DType::f64));
      CHECK_FALSE(first(f32, ir::DType::f32));
      f64[at] = value;
      f32[at] = static_cast<float>(value);
      CHECK(first(f64, ir::DType::f64) == static_cast<int64_t>(at));
      CHECK(first(f32, ir::DType::f32) == static_cast<int64_t>(at));
    }
    for (const auto& [dtype, largest, infinite] :
         {std::tuple(ir::DType::bf16, 0x7f7f, 0x7f80), std::tuple(ir::DType::f16, 0x7bff, 0x7c00)})
      for (const int bits : {infinite, infinite + 1, infinite | 0x8000}) {
        std::vector<uint16_t> half(10000, static_cast<uint16_t>(largest));
        CHECK_FALSE(first(half, dtype));
        half[at] = static_cast<uint16_t>(bits);
        CHECK(first(half, dtype) == static_cast<int64_t>(at));
      }
  }
}

TEST_CASE("float_convert: half precision rounds to nearest even, and what becomes infinite is counted") {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> in = {1.0F, 0x1.01p0F, 0x1.03p0F, 65519.0F, 65520.0F, -70000.0F, inf, 3.4e38F, 0x1p-24F};
  std::vector<uint16_t> half(in.size()), brain(in.size());
  CHECK(convert_floats(bytes(in), ir::DType::f32, writable(half), ir::DType::f16) == 3);  // 65520, -70000, 3.4e38
  CHECK(half == std::vector<uint16_t>{0x3c00, 0x3c04, 0x3c0c, 0x7bff, 0x7c00, 0xfc00, 0x7c00, 0x7c00, 0x0001});
  CHECK(convert_floats(bytes(in), ir::DType::f32, writable(brain), ir::DType::bf16) == 1);  // 3.4e38
  CHECK(brain == std::vector<uint16_t>{0x3f80, 0x3f80, 0x3f82, 0x4780, 0x4780, 0xc789, 0x7f80, 0x7f80, 0x3380});
  std::vector<double> wide(in.size());
  CHECK(convert_floats(bytes(half), ir::DType::f16, writable(wide), ir::DType::f64) == 0);
  CHECK(wide[3] == 65504.0);
  CHECK(wide[8] == 0x1p-24);
  CHECK(wide[5] == -static_cast<double>(inf));
  const std::vector<double> nan = {std::nan("")};
  std::vector<uint16_t> one(1);
  CHECK(convert_floats(bytes(nan), ir::DType::f64, writable(one), ir::DType::bf16) == 0);
  CHECK(one[0] == 0x7fc0);
}

}  // namespace sfsdp::train::hf_copy_test
