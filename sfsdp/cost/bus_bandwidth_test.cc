// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/bus_bandwidth.h"

#include <doctest/doctest.h>

#include <cmath>

namespace sfsdp::cost::bus_bandwidth_test {
namespace {

TEST_CASE("bus bandwidth: exact at its points, linear in the number of doublings between them, constant beyond") {
  const BusBandwidth curve({{2, 180}, {8, 60}, {16, 50}});
  CHECK(curve.at(2) == 180);
  CHECK(curve.at(4) == doctest::Approx(120));  // one of two doublings
  CHECK(curve.at(8) == 60);
  CHECK(curve.at(8 * std::sqrt(2.0)) == doctest::Approx(55));
  CHECK(curve.at(1) == 180);
  CHECK(curve.at(1024) == 50);
  CHECK(BusBandwidth({{4, 7}}).at(3) == 7);
}

TEST_CASE("bus bandwidth: what is no curve is refused") {
  CHECK_THROWS(BusBandwidth().at(2));
  CHECK_THROWS(BusBandwidth({{2, 1}, {2, 2}}));
  CHECK_THROWS(BusBandwidth({{0.5, 1}}));
  CHECK_THROWS(BusBandwidth({{2, 0}}));
}

}  // namespace
}  // namespace sfsdp::cost::bus_bandwidth_test
