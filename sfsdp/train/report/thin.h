// SPDX-License-Identifier: BSD-3-Clause
// A long run in as many points as a page can show, without losing a spike.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sfsdp/train/report/run_files.h"

namespace sfsdp::train {

// Consecutive steps as one point. Values that are not finite are counted apart and in no mean; where none is finite, mean,
// least and most are nan.
struct Point {
  int64_t first = 0, last = 0;  // steps
  double seconds = 0;           // since the run began, of the steps that stand in the file
  double tokens = 0;            // trained on by the last of them
  int64_t not_finite = 0;       // losses
  std::array<double, kFields> mean = {}, least = {}, most = {};
};

// At most `limit` points, each of as many steps but for the last.
std::vector<Point> thinned(const std::vector<StepLine>& steps, size_t limit);

}  // namespace sfsdp::train
