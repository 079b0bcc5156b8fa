// SPDX-License-Identifier: BSD-3-Clause
// Which source the next sample comes from, so that the sources have their shares at every moment, not only on average.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sfsdp::train {

// Smooth weighted round robin: before each draw every source is credited its weight, the one with the most credit (the first
// of equals) is drawn and pays the sum of all. After n draws a source has n * share samples, give or take the number of sources.
// In integers, so the same on every machine. State over time: the credits, whose sum is 0 after each draw.
class Mix {
 public:
  // Shares are weights / their sum. The weights are above 0.
  explicit Mix(std::span<const double> weights);

  size_t draw();
  const std::vector<int64_t>& credits() const { return credits_; }
  // Goes on where another Mix stopped, also one of other weights. Returns false, and changes nothing, for credits that no Mix
  // of as many sources has.
  bool set_credits(std::span<const int64_t> credits);

 private:
  std::vector<int64_t> weights_;
  int64_t sum_ = 0;
  std::vector<int64_t> credits_;
};

}  // namespace sfsdp::train
