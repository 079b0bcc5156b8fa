// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/base/lap_clock.h"

#include <doctest/doctest.h>

namespace sfsdp::lap_clock_test {
namespace {

// A clock that stands where the test puts it, and counts how often it is read.
struct SetClock {
  using duration = std::chrono::duration<double>;
  using time_point = std::chrono::time_point<SetClock, duration>;
  static inline double at = 0;
  static inline int reads = 0;
  static time_point now() {
    ++reads;
    return time_point(duration(at));
  }
};

}  // namespace

TEST_CASE("each moment counts for the kind that was switched to last") {
  SetClock::at = 10;
  LapClock<3, SetClock> clock;
  SetClock::at = 11;  // 1 of kind 0
  clock.switch_to(2);
  SetClock::at = 13;  // 2 of kind 2
  clock.switch_to(0);
  SetClock::at = 17;  // 4 of kind 0
  clock.switch_to(2);
  SetClock::at = 25;  // 8 of kind 2
  CHECK(clock.seconds() == std::array<double, 3>{5, 0, 10});
  SetClock::at = 26;  // it runs on
  CHECK(clock.seconds() == std::array<double, 3>{5, 0, 11});
}

TEST_CASE("a clock that stays with its kind is not read") {
  LapClock<2, SetClock> clock;
  const int reads = SetClock::reads;
  for (int i = 0; i < 5; ++i) clock.switch_to(0);
  CHECK(SetClock::reads == reads);
  clock.switch_to(1);
  CHECK(SetClock::reads == reads + 1);
}

}  // namespace sfsdp::lap_clock_test
