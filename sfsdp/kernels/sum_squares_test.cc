// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/kernels/sum_squares.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <vector>

#include "sfsdp/base/half.h"
#include "sfsdp/kernels/family.h"

namespace sfsdp::kernels::sum_squares_test {

TEST_CASE("sum of squares: that of long double, the same bits on every family of processors, from any address") {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> wide(5000);
  std::vector<uint16_t> narrow;
  for (float& x : wide) x = normal(random);
  for (const float x : wide) narrow.push_back(to_bf16(x));
  for (const int64_t count : {0, 1, 31, 32, 33, 64, 1000, 4997})
    for (const int64_t begin : {0, 1, 3}) {
      CAPTURE(count);
      CAPTURE(begin);
      long double exact = 0, exact_narrow = 0;
      for (int64_t i = begin; i < begin + count; ++i) {
        const long double x = wide[static_cast<size_t>(i)], y = from_bf16(narrow[static_cast<size_t>(i)]);
        exact += x * x;
        exact_narrow += y * y;
      }
      const double sum = sum_squares(wide.data() + begin, ir::DType::f32, count);
      const double sum_narrow = sum_squares(narrow.data() + begin, ir::DType::bf16, count);
      CHECK(std::abs(static_cast<double>(sum - exact)) <= 1e-14 * static_cast<double>(exact));
      CHECK(std::abs(static_cast<double>(sum_narrow - exact_narrow)) <= 1e-14 * static_cast<double>(exact_narrow));
      for (const Family& family : families()) {
        CAPTURE(family.name);
        CHECK(family.sum_squares(wide.data() + begin, true, count) == sum);
        CHECK(family.sum_squares(narrow.data() + begin, false, count) == sum_narrow);
      }
    }
}

TEST_CASE("sum of squares: squares that float32 cannot hold, infinities and nans") {
  for (const Family& family : families()) {
    CAPTURE(family.name);
    std::vector<float> data(40, 3e38f);
    CHECK(family.sum_squares(data.data(), true, 40) == 40 * (static_cast<double>(3e38f) * static_cast<double>(3e38f)));
    data[35] = -INFINITY;
    CHECK(family.sum_squares(data.data(), true, 40) == static_cast<double>(INFINITY));
    data[3] = NAN;
    CHECK(std::isnan(family.sum_squares(data.data(), true, 40)));
  }
}

}  // namespace sfsdp::kernels::sum_squares_test
