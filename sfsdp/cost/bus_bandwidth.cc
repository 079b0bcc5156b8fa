// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/bus_bandwidth.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "sfsdp/base/check.h"

namespace sfsdp::cost {

BusBandwidth::BusBandwidth(std::vector<Point> points) : points_(std::move(points)) {
  double before = 0;
  for (const Point& p : points_) {
    SFSDP_CHECK(p.members >= 1 && p.members > before && p.bandwidth > 0, "bus bandwidth of ", p.members, " after ",
                before, ": ", p.bandwidth);
    before = p.members;
  }
}

bool BusBandwidth::has(double members) const {
  return std::ranges::find(points_, members, &Point::members) != points_.end();
}

double BusBandwidth::at(double members) const {
  SFSDP_CHECK(!points_.empty(), "a bus bandwidth without points");
  const auto high = std::ranges::lower_bound(points_, members, {}, &Point::members);
  if (high == points_.begin()) return high->bandwidth;
  if (high == points_.end()) return points_.back().bandwidth;
  const auto low = std::prev(high);
  const double share = std::log2(members / low->members) / std::log2(high->members / low->members);
  return low->bandwidth + share * (high->bandwidth - low->bandwidth);
}

}  // namespace sfsdp::cost
