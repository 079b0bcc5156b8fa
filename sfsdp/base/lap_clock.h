// SPDX-License-Identifier: BSD-3-Clause
// Seconds by what they were spent on.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>

namespace sfsdp {

// Runs from its construction, as kind 0. Every moment counts for one kind; the clock is read only where the kind changes.
template <size_t kinds, class Clock = std::chrono::steady_clock>
class LapClock {
 public:
  // What follows counts as `kind`, which is below kinds.
  void switch_to(size_t kind) {
    if (kind == kind_) return;
    add_lap();
    kind_ = kind;
  }
  // Up to now, by kind. The clock runs on.
  std::array<double, kinds> seconds() {
    add_lap();
    return seconds_;
  }

 private:
  void add_lap() {
    const auto now = Clock::now();
    seconds_[kind_] += std::chrono::duration<double>(now - since_).count();
    since_ = now;
  }

  std::array<double, kinds> seconds_ = {};
  size_t kind_ = 0;
  typename Clock::time_point since_ = Clock::now();
};

}  // namespace sfsdp
