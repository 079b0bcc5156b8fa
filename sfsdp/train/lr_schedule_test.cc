// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/lr_schedule.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"

namespace sfsdp::train::lr_schedule_test {

namespace {

std::vector<double> rates(const LrScheduleOptions& options, int64_t steps) {
  const LrSchedule schedule(options);
  std::vector<double> rates;
  for (int64_t step = 1; step <= steps; ++step) rates.push_back(schedule.lr(step));
  return rates;
}

void check_close(const std::vector<double>& got, const std::vector<double>& expected) {
  REQUIRE(got.size() == expected.size());
  for (size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - expected[i]) <= 1e-15);
}

}  // namespace

// conventions.md: "lr(k) = lr * min(1, k/W) ... With W = 5: 2e-4, 4e-4, 6e-4, 8e-4, 1e-3, 1e-3; decay_ratio = 0".
TEST_CASE("with decay_ratio 0 the rate warms up to lr at step W and stays there") {
  const LrScheduleOptions options{.lr = 1e-3, .steps = 8, .warmup_steps = 5, .decay_ratio = 0};
  check_close(rates(options, 8), {2e-4, 4e-4, 6e-4, 8e-4, 1e-3, 1e-3, 1e-3, 1e-3});
  for (int64_t k = 1; k <= 100; ++k)
    CHECK(LrSchedule(options).lr(k) == 1e-3 * std::min(1.0, static_cast<double>(k) / 5.0));
}

// conventions.md: "Older TorchTitan had k/(W+1)."
TEST_CASE("the last warm-up step has the full rate, not W/(W+1) of it") {
  CHECK(LrSchedule({.lr = 1, .steps = 10, .warmup_steps = 4, .decay_ratio = 0}).lr(4) == 1);
}

// conventions.md: "left unset, TorchTitan decays linearly to the end of training".
// W = 2, D = 8, S = 1: at 0-based t >= 3, p = (t + 1 - 3) / 8.
TEST_CASE("without decay_ratio the rate decays linearly from the end of warm-up, and the last step still moves") {
  check_close(rates({.lr = 1, .steps = 10, .warmup_steps = 2}, 10),
              {0.5, 1, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125});
}

// W = 2, D = round(10 * 0.4) = 4, S = 5.
TEST_CASE("decay_ratio leaves a stable part between warm-up and decay") {
  LrScheduleOptions options{.lr = 1, .steps = 10, .warmup_steps = 2, .decay_ratio = 0.4};
  check_close(rates(options, 10), {0.5, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25});
  options.decay_type = DecayType::Sqrt;
  check_close(rates(options, 10), {0.5, 1, 1, 1, 1, 1, 1, 0.5, 1 - std::sqrt(0.5), 1 - std::sqrt(0.75)});
  options.decay_type = DecayType::Cosine;
  check_close(rates(options, 10), {0.5, 1, 1, 1, 1, 1, 1, 0.5 + std::sqrt(0.125), 0.5, 0.5 - std::sqrt(0.125)});
}

TEST_CASE("min_lr_factor is where the decay ends, also past the last step") {
  const LrSchedule schedule({.lr = 2, .steps = 10, .warmup_steps = 2, .decay_ratio = 0.4, .min_lr_factor = 0.1});
  CHECK(schedule.lr(9) == doctest::Approx(2 * (0.1 + 0.9 * 0.5)));
  CHECK(schedule.lr(11) == doctest::Approx(0.2));
  CHECK(schedule.lr(1000) == doctest::Approx(0.2));
}

TEST_CASE("warm-up longer than the schedule is cut to it, and decay to what warm-up leaves") {
  check_close(rates({.lr = 1, .steps = 4, .warmup_steps = 200}, 4), {0.25, 0.5, 0.75, 1});
  // D = min(round(10 * 0.9), 10 - 8) = 2, S = 1
  check_close(rates({.lr = 1, .steps = 10, .warmup_steps = 8, .decay_ratio = 0.9}, 10),
              {0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1, 1, 0.5});
}

TEST_CASE("the number of decay steps is rounded half to even, as Python rounds") {
  // 5 * 0.5 = 2.5 -> 2: S = 5 + 1 - 0 - 2 = 4
  check_close(rates({.lr = 1, .steps = 5, .warmup_steps = 0, .decay_ratio = 0.5}, 5), {1, 1, 1, 1, 0.5});
}

TEST_CASE("step 0 and an unknown decay are refused") {
  CHECK_THROWS_AS(LrSchedule({}).lr(0), InternalError);
  CHECK_THROWS_WITH_AS(parse_decay_type("exp"), doctest::Contains("expected one of linear, sqrt, cosine"), UserError);
  CHECK(parse_decay_type("cosine") == DecayType::Cosine);
}

}  // namespace sfsdp::train::lr_schedule_test
