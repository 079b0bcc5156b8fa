// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/report/thin.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "sfsdp/base/check.h"

namespace sfsdp::train {
namespace {

// `seconds`: up to the begin of these steps.
Point point_of(std::span<const StepLine> steps, double seconds) {
  Point point;
  point.first = steps.front().step;
  point.last = steps.back().step;
  point.seconds = seconds;
  point.tokens = steps.back()[Field::Tokens];
  std::array<int64_t, kFields> finite = {};
  for (const StepLine& line : steps) {
    for (const Field field : {Field::StepTime, Field::Between})
      if (std::isfinite(line[field])) point.seconds += line[field];
    if (!std::isfinite(line[Field::Loss])) ++point.not_finite;
    for (size_t f = 0; f < kFields; ++f) {
      const double value = line.values[f];
      if (!std::isfinite(value)) continue;
      const bool is_first = finite[f]++ == 0;
      point.mean[f] += (value - point.mean[f]) / static_cast<double>(finite[f]);  // a sum could overflow
      point.least[f] = is_first ? value : std::min(point.least[f], value);
      point.most[f] = is_first ? value : std::max(point.most[f], value);
    }
  }
  for (size_t f = 0; f < kFields; ++f)
    if (finite[f] == 0) point.mean[f] = point.least[f] = point.most[f] = kNan;
  return point;
}

}  // namespace

std::vector<Point> thinned(const std::vector<StepLine>& steps, size_t limit) {
  SFSDP_CHECK(limit >= 1, "limit ", limit);
  const size_t of_a_point = (steps.size() + limit - 1) / limit;
  std::vector<Point> points;
  double seconds = 0;
  for (std::span<const StepLine> rest = steps; !rest.empty();) {
    const auto some = rest.first(std::min(of_a_point, rest.size()));
    points.push_back(point_of(some, seconds));
    seconds = points.back().seconds;
    rest = rest.subspan(some.size());
  }
  return points;
}

}  // namespace sfsdp::train
