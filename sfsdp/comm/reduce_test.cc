// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/reduce.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "sfsdp/base/error.h"

namespace sfsdp::comm::reduce_test {
namespace {

template <class T>
std::vector<T> reduced(const std::vector<std::vector<T>>& parts, ir::DType dtype, ReduceOp op) {
  std::vector<std::span<const std::byte>> spans;
  for (const auto& part : parts) spans.push_back(std::as_bytes(std::span(part)));
  std::vector<T> out(parts.at(0).size());
  reduce(spans, std::as_writable_bytes(std::span(out)), dtype, op);
  return out;
}

uint16_t through_f32(uint16_t x, ir::DType dtype) { return reduced<uint16_t>({{x}, {x}}, dtype, ReduceOp::Max)[0]; }

TEST_CASE("reduce: sums in rank order, which for floats is not the order of size") {
  const std::vector<std::vector<float>> parts = {{1e8F}, {1.0F}, {-1e8F}};
  CHECK(reduced<float>(parts, ir::DType::f32, ReduceOp::Sum)[0] == 0.0F);
  CHECK(reduced<float>({parts[0], parts[2], parts[1]}, ir::DType::f32, ReduceOp::Sum)[0] == 1.0F);
}

TEST_CASE("reduce: bf16 rounds once, after the last rank, to nearest even") {
  // 1 + 2^-8 + 2^-8 = 1 + 2^-7: rounding on the way would stay at 1.
  CHECK(reduced<uint16_t>({{0x3f80}, {0x3b80}, {0x3b80}}, ir::DType::bf16, ReduceOp::Sum)[0] == 0x3f81);
  CHECK(reduced<uint16_t>({{0x3f80}, {0x3b80}}, ir::DType::bf16, ReduceOp::Sum)[0] == 0x3f80);  // a tie, to even
  CHECK(reduced<uint16_t>({{0x3f81}, {0x3b80}}, ir::DType::bf16, ReduceOp::Sum)[0] == 0x3f82);  // the other tie
}

TEST_CASE("reduce: a bf16 nan stays nan and every other bf16 keeps its bits") {
  for (uint32_t x = 0; x < 0x10000; ++x) {
    const auto brain = static_cast<uint16_t>(x);
    const bool nan = (brain & 0x7fff) > 0x7f80;
    CAPTURE(brain);
    REQUIRE(through_f32(brain, ir::DType::bf16) == (nan ? 0x7fc0 : brain));
  }
  const auto sum = reduced<uint16_t>({{0x7f80, 0x7f7f}, {0xff80, 0x7f7f}}, ir::DType::bf16, ReduceOp::Sum);
  CHECK((sum[0] & 0x7fff) == 0x7fc0);  // inf - inf
  CHECK(sum[1] == 0x7f80);             // twice the largest number
  for (const ReduceOp op : {ReduceOp::Max, ReduceOp::Min})
    CHECK(reduced<uint16_t>({{0x3f80}, {0x7fff}, {0x4000}}, ir::DType::bf16, op)[0] == 0x7fc0);
}

TEST_CASE("reduce: f16 survives the way through f32, all 65536 of them") {
  for (uint32_t x = 0; x < 0x10000; ++x) {
    const auto half = static_cast<uint16_t>(x);
    const bool nan = (half & 0x7fff) > 0x7c00;
    CAPTURE(half);
    if (nan)
      REQUIRE((through_f32(half, ir::DType::f16) & 0x7fff) == 0x7e00);
    else
      REQUIRE(through_f32(half, ir::DType::f16) == half);
  }
}

TEST_CASE("reduce: f16 rounds to nearest even, subnormal and over the top") {
  const auto sum = [](uint16_t a, uint16_t b) {
    return reduced<uint16_t>({{a}, {b}}, ir::DType::f16, ReduceOp::Sum)[0];
  };
  CHECK(sum(0x3c00, 0x1000) == 0x3c00);  // 1 + 2^-11: a tie, to even
  CHECK(sum(0x3c01, 0x1000) == 0x3c02);
  CHECK(sum(0x7bff, 0x4b80) == 0x7bff);  // 65504 + 15
  CHECK(sum(0x7bff, 0x4c00) == 0x7c00);  // 65504 + 16: halfway to 65536
  CHECK(sum(0x0001, 0x0001) == 0x0002);  // subnormal
  CHECK(sum(0x03ff, 0x0001) == 0x0400);  // subnormal to normal
  CHECK(sum(0xbc00, 0x3c00) == 0x0000);
}

TEST_CASE("reduce: maximum and minimum take a nan from any rank") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::Max, ReduceOp::Min}) {
    CHECK(std::isnan(reduced<float>({{nan}, {1.0F}}, ir::DType::f32, op)[0]));
    CHECK(std::isnan(reduced<float>({{1.0F}, {nan}}, ir::DType::f32, op)[0]));
  }
  CHECK(reduced<float>({{-3.0F, 2.0F}, {1.0F, -2.0F}}, ir::DType::f32, ReduceOp::Max) == std::vector<float>{1, 2});
  CHECK(reduced<double>({{-3.0, 2.0}, {1.0, -2.0}}, ir::DType::f64, ReduceOp::Min) == std::vector<double>{-3, -2});
}

TEST_CASE("reduce: integers wrap around") {
  constexpr int32_t kTop32 = std::numeric_limits<int32_t>::max();
  constexpr int64_t kTop64 = std::numeric_limits<int64_t>::max();
  CHECK(reduced<int32_t>({{kTop32}, {1}}, ir::DType::i32, ReduceOp::Sum)[0] == std::numeric_limits<int32_t>::min());
  CHECK(reduced<int64_t>({{kTop64}, {1}}, ir::DType::i64, ReduceOp::Sum)[0] == std::numeric_limits<int64_t>::min());
}

TEST_CASE("reduce: neither the size nor the alignment of the parts matters") {
  for (const size_t count : {0U, 1U, 7U, 1023U, 1024U, 1025U, 5000U}) {
    std::vector<std::byte> a(count * 4 + 1), b(count * 4 + 1);
    for (size_t i = 0; i < count; ++i) {
      const auto x = static_cast<float>(i), y = 0.5F;
      std::memcpy(a.data() + 1 + 4 * i, &x, 4);
      std::memcpy(b.data() + 1 + 4 * i, &y, 4);
    }
    const std::vector<std::span<const std::byte>> parts = {std::span(a).subspan(1), std::span(b).subspan(1)};
    reduce(parts, std::span(a).subspan(1), ir::DType::f32, ReduceOp::Sum);  // in place
    for (size_t i = 0; i < count; ++i) {
      float x;
      std::memcpy(&x, a.data() + 1 + 4 * i, 4);
      REQUIRE(x == static_cast<float>(i) + 0.5F);
    }
  }
}

TEST_CASE("reduce: refuses a dtype without sums") {
  const std::vector<uint8_t> part = {1};
  CHECK_THROWS_AS(reduced<uint8_t>({part, part}, ir::DType::u8, ReduceOp::Sum), UserError);
}

}  // namespace
}  // namespace sfsdp::comm::reduce_test
