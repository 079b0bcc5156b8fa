// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/kernels/rope.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "sfsdp/base/half.h"
#include "sfsdp/kernels/family.h"

namespace sfsdp::kernels::rope_test {
namespace {

struct Case {
  int64_t pairs;
  bool halves, full, complex, inverse, narrow, narrow_angles;
};

// x [2, 3, 2 pairs] with a gap after each row, angles by the middle dimension.
void expect_exact(const Case& c, const Family& family) {
  CAPTURE(family.name);
  CAPTURE(c.pairs);
  CAPTURE(c.halves);
  CAPTURE(c.full);
  CAPTURE(c.complex);
  CAPTURE(c.inverse);
  CAPTURE(c.narrow);
  CAPTURE(c.narrow_angles);
  std::mt19937 random(13);
  std::normal_distribution<float> normal;
  const int64_t row = 2 * c.pairs + 3, table = c.full || c.complex ? 2 * c.pairs : c.pairs;
  const auto fill = [&](int64_t count, bool narrow, std::vector<float>& wide, std::vector<uint16_t>& low) {
    for (int64_t i = 0; i < count; ++i) {
      wide.push_back(normal(random));
      low.push_back(to_bf16(wide.back()));
      if (narrow) wide.back() = from_bf16(low.back());
    }
  };
  std::vector<float> x, cos, sin, out(static_cast<size_t>(6 * row), 99);
  std::vector<uint16_t> low_x, low_cos, low_sin, low_out(out.size(), to_bf16(99));
  fill(6 * row, c.narrow, x, low_x);
  fill(3 * table, c.narrow_angles, cos, low_cos);
  fill(3 * table, c.narrow_angles, sin, low_sin);
  const auto data = [](bool narrow, std::vector<float>& wide, std::vector<uint16_t>& low) {
    return narrow ? static_cast<const void*>(low.data()) : wide.data();
  };
  Rope call;
  call.sizes[kRopeDims - 2] = 2;
  call.sizes[kRopeDims - 1] = 3;
  call.pairs = c.pairs;
  call.halves = c.halves;
  call.full = c.full;
  call.complex = c.complex;
  call.inverse = c.inverse;
  call.dtype = c.narrow ? ir::DType::bf16 : ir::DType::f32;
  call.angle_dtype = c.narrow_angles ? ir::DType::bf16 : ir::DType::f32;
  call.x.data = data(c.narrow, x, low_x);
  call.out.data = data(c.narrow, out, low_out);
  for (RopeRows* rows : {&call.x, &call.out}) {
    rows->strides[kRopeDims - 2] = 3 * row;
    rows->strides[kRopeDims - 1] = row;
  }
  call.cos.data = data(c.narrow_angles, cos, low_cos);
  call.sin.data = data(c.narrow_angles, sin, low_sin);
  call.cos.strides[kRopeDims - 1] = c.complex ? c.pairs : table;
  call.sin.strides[kRopeDims - 1] = table;
  REQUIRE(rope_rows(call) == 6);
  family.rope(call, 0, 6);
  for (int64_t r = 0; r < 6; ++r)
    for (int64_t j = 0; j < c.pairs; ++j) {
      const int64_t first = r * row + (c.halves ? j : 2 * j), second = first + (c.halves ? c.pairs : 1);
      const int64_t angles = r % 3 * table;
      const auto at = [](const std::vector<float>& all, int64_t i) {
        return static_cast<double>(all[static_cast<size_t>(i)]);
      };
      const double c1 = at(cos, angles + (c.complex ? 2 * j : j)),
                   s1 = c.complex ? at(cos, angles + 2 * j + 1) : at(sin, angles + j);
      const double c2 = c.full ? at(cos, angles + c.pairs + j) : c1, s2 = c.full ? at(sin, angles + c.pairs + j) : s1;
      const double a = at(x, first), b = at(x, second);
      const double one = c.inverse ? a * c1 + b * s2 : a * c1 - b * s1,
                   two = c.inverse ? b * c2 - a * s1 : b * c2 + a * s2;
      const auto got = [&](int64_t i) {
        return c.narrow ? from_bf16(low_out[static_cast<size_t>(i)]) : out[static_cast<size_t>(i)];
      };
      REQUIRE(std::abs(got(first) - one) <= (c.narrow ? 0x1p-8 * std::abs(one) : 0) + 2e-6);
      REQUIRE(std::abs(got(second) - two) <= (c.narrow ? 0x1p-8 * std::abs(two) : 0) + 2e-6);
    }
  for (int64_t r = 0; r < 6; ++r)
    for (int64_t i = 2 * c.pairs; i < row; ++i)
      REQUIRE((c.narrow ? from_bf16(low_out[static_cast<size_t>(r * row + i)])
                        : out[static_cast<size_t>(r * row + i)]) == 99);
}

}  // namespace

TEST_CASE("rotary embedding: pairs as float64 turns them, neighbours and halves, there and back") {
  for (const Family& family : families())
    for (const int64_t pairs : {1, 4, 8, 16, 19, 32, 50})
      for (const bool inverse : {false, true})
        for (const bool narrow : {false, true})
          for (const bool narrow_angles : {false, true}) {
            expect_exact({pairs, false, false, false, inverse, narrow, narrow_angles}, family);
            expect_exact({pairs, true, false, false, inverse, narrow, narrow_angles}, family);
            expect_exact({pairs, true, true, false, inverse, narrow, narrow_angles}, family);
            if (!narrow_angles) expect_exact({pairs, false, false, true, inverse, narrow, false}, family);
            if (!narrow_angles) expect_exact({pairs, true, false, true, inverse, narrow, false}, family);
          }
}

}  // namespace sfsdp::kernels::rope_test
