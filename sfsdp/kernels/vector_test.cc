// SPDX-License-Identifier: BSD-3-Clause
// What all kernels compute with, against float64 over the whole range of float32, on every family of processors that is here.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/kernels/family.h"

namespace sfsdp::kernels::vector_test {
namespace {

// Every stride-th float32 whose size is between two numbers, of one sign.
struct Range {
  float from, to;  // from <= to, of one sign or 0; the ends are in it
  uint32_t stride;
};

constexpr size_t kBlock = 4096;  // a multiple of what kernels take at once

// Calls `body` with blocks of the range's numbers, the last one filled up with its end.
void for_blocks(const Range& range, const std::function<void(std::span<const float>)>& body) {
  const uint32_t sign = std::signbit(range.to) ? 0x80000000U : 0;
  const auto size_of = [](float x) { return std::bit_cast<uint32_t>(std::abs(x)); };
  std::vector<float> block;
  for (uint64_t size = size_of(range.from); size <= size_of(range.to); size += range.stride) {
    block.push_back(std::bit_cast<float>(static_cast<uint32_t>(size) | sign));
    if (block.size() < kBlock) continue;
    body(block);
    block.clear();
  }
  block.resize(kBlock, range.to);
  body(block);
}

// The unit in the last place that a float32 next to it has; of a number that is less than all normal ones, theirs.
double unit_of(double exact) {
  int exponent = -125;
  if (exact != 0) std::frexp(exact, &exponent);
  return std::ldexp(1.0, std::max(exponent, -125) - 24);
}

using Function = std::function<void(const Family& family, std::span<const float> x, std::span<float> to)>;

// By family, the largest distance from float64 in units of the last place.
std::vector<double> worst_of(std::span<const Range> ranges, double (*exact)(double), const Function& function) {
  const std::vector<Family> all = families();
  std::vector<double> worst(all.size()), wanted(kBlock), unit(kBlock);
  std::vector<float> got(kBlock);
  for (const Range& range : ranges)
    for_blocks(range, [&](std::span<const float> x) {
      for (size_t i = 0; i < kBlock; ++i) unit[i] = unit_of(wanted[i] = exact(x[i]));
      for (size_t f = 0; f < all.size(); ++f) {
        function(all[f], x, got);
        for (size_t i = 0; i < kBlock; ++i) {
          const double error = std::abs(got[i] - wanted[i]) / unit[i];
          if (!(error <= worst[f])) worst[f] = error;  // a nan too
        }
      }
    });
  return worst;
}

void expect_at_most(double most, const std::vector<double>& worst) {
  const std::vector<Family> all = families();
  for (size_t f = 0; f < all.size(); ++f) {
    CAPTURE(std::string(all[f].name));
    CHECK(worst[f] <= most);
  }
}

void exp_of(const Family& family, std::span<const float> x, std::span<float> to) {
  family.exp(x.data(), to.data(), std::ssize(x));
}

constexpr float kLeast = -87.33654F;  // the last one whose e^x is no less than 2^-126
constexpr float kMost = 88.3762F;     // beyond it the power of two is none that float32 has

TEST_CASE("e^x is float64's to 1.5 units of the last place, from 2^-126 to the largest number that it is taken of") {
  const std::vector<Range> ranges = {{-0.0F, -0x1p-6F, 4099}, {-0x1p-6F, kLeast, 31}, {-87.2F, kLeast, 1},
                                     {0.0F, 0x1p-6F, 4099},   {0x1p-6F, kMost, 31},   {88.3F, kMost, 1},
                                     {-0.5F, -1, 1}};  // all of a binade
  expect_at_most(1.5, worst_of(
                          ranges, [](double x) { return std::exp(x); }, exp_of));
}

TEST_CASE("e^x below 2^-126 is 0, of nan nan, of what is next to 0 one") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> none = {std::nextafter(kLeast, -inf), -88, -89, -104, -1e10F, -1e30F, -inf};
  const std::vector<float> one = {0, -0.0F, 0x1p-149F, -0x1p-149F, 0x1p-126F, -0x1p-26F};
  std::vector<float> x(16, nan), to(16);
  std::ranges::copy(none, x.begin());
  std::ranges::copy(one, x.begin() + 8);
  for (const Family& family : families()) {
    CAPTURE(std::string(family.name));
    exp_of(family, x, to);
    for (size_t i = 0; i < none.size(); ++i) CHECK(std::bit_cast<uint32_t>(to[i]) == 0);
    CHECK(std::isnan(to[7]));
    for (size_t i = 0; i < one.size(); ++i) CHECK(to[8 + i] == 1);
  }
}

// 1 + tanh(u) is 2 sigmoid(2u), as GELU has it: there is no other form of tanh.
TEST_CASE("sigmoid is float64's to 2 units of the last place, below 0 to 3, over all of float32") {
  const auto sigmoid_of = [](const Family& family, std::span<const float> x, std::span<float> to) {
    const PointData input = {const_cast<float*>(x.data()), ir::DType::f32, 0}, output = {to.data(), ir::DType::f32, 1};
    const PointStep step = {PointOp::Sigmoid, 1, 0, 0};
    family.pointwise({&input, 1, &step, 1, &output, 1, 0, std::ssize(x)});
  };
  const auto exact = [](double x) { return 1 / (1 + std::exp(-x)); };
  const float most = std::numeric_limits<float>::max();
  expect_at_most(
      2, worst_of(std::vector<Range>{{0.0F, 0x1p-6F, 4099}, {0x1p-6F, 90, 31}, {90, most, 99991}}, exact, sigmoid_of));
  expect_at_most(3, worst_of(std::vector<Range>{{-0.0F, -0x1p-6F, 4099}, {-0x1p-6F, -87, 31}, {-87.2F, kLeast, 1}},
                             exact, sigmoid_of));
  expect_at_most(1, worst_of(
                        std::vector<Range>{{std::nextafter(kLeast, -100.0F), -110, 31}, {-110, -most, 99991}},
                        [](double) { return 0.0; }, sigmoid_of));
}

}  // namespace
}  // namespace sfsdp::kernels::vector_test
