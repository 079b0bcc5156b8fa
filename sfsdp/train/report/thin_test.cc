// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/report/thin.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

namespace sfsdp::train::thin_test {
namespace {

StepLine line_of(int64_t step, double loss) {
  StepLine line;
  line.step = step;
  line.values[static_cast<size_t>(Field::Loss)] = loss;
  line.values[static_cast<size_t>(Field::StepTime)] = 0.375;
  line.values[static_cast<size_t>(Field::Between)] = 0.125;
  line.values[static_cast<size_t>(Field::Tokens)] = static_cast<double>(step) * 100;
  return line;
}

constexpr auto kLoss = static_cast<size_t>(Field::Loss);

}  // namespace

TEST_CASE("as many steps as points, or fewer, stay as they are") {
  const std::vector<Point> points = thinned({line_of(1, 4), line_of(2, 3), line_of(5, 2)}, 3);
  REQUIRE(points.size() == 3);
  CHECK(points[2].first == 5);
  CHECK(points[2].last == 5);
  CHECK(points[2].mean[kLoss] == 2);
  CHECK(points[2].seconds == 1.5);
  CHECK(points[2].tokens == 500);
  CHECK(thinned({}, 3).empty());
}

TEST_CASE("a spike of one step in a million is seen, and so is a loss that is not finite") {
  std::vector<StepLine> steps;
  for (int64_t k = 1; k <= 1000000; ++k) steps.push_back(line_of(k, 2));
  steps[123456].values[kLoss] = 50;
  steps[234567].values[kLoss] = std::numeric_limits<double>::quiet_NaN();
  steps[345678].values[kLoss] = std::numeric_limits<double>::infinity();
  const std::vector<Point> points = thinned(steps, 1000);
  REQUIRE(points.size() == 1000);
  CHECK(points[123].first == 123001);
  CHECK(points[123].last == 124000);
  CHECK(points[123].most[kLoss] == 50);
  CHECK(points[123].least[kLoss] == 2);
  CHECK(points[123].mean[kLoss] == doctest::Approx(2.048));
  CHECK(points[124].most[kLoss] == 2);
  CHECK(points[234].not_finite == 1);
  CHECK(points[345].not_finite == 1);
  CHECK(points[345].most[kLoss] == 2);
  CHECK(points[999].seconds == doctest::Approx(500000));
  CHECK(points[999].tokens == 1e8);
}

TEST_CASE("where no value is finite there is none to draw") {
  const std::vector<Point> points = thinned({line_of(1, std::nan("")), line_of(2, std::nan(""))}, 1);
  REQUIRE(points.size() == 1);
  CHECK(std::isnan(points[0].mean[kLoss]));
  CHECK(points[0].not_finite == 2);
}

}  // namespace sfsdp::train::thin_test
