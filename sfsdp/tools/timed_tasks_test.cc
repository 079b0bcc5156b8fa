// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/timed_tasks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "sfsdp/testing.h"

namespace sfsdp::tools::timed_tasks_test {
namespace {

const double kNever = std::nan("");

TEST_CASE("sweeps count but for the first and those in which the machine stood still") {
  using Sweeps = std::vector<size_t>;
  CHECK(undisturbed(std::vector<double>{9}) == Sweeps{0});
  CHECK(undisturbed(std::vector<double>{1, 9}) == Sweeps{1});
  CHECK(undisturbed(std::vector<double>{1, 5, 4, 9, 3, 21, 7}) == Sweeps{1, 2, 3, 4, 6});
  CHECK(undisturbed(std::vector<double>{9, 2, 5, 2, 2}) == Sweeps{1, 3, 4});
  CHECK(undisturbed(std::vector<double>{kNever, 3, 2}) == Sweeps{1, 2});
  CHECK(undisturbed(std::vector<double>{kNever}).empty());
}

TEST_CASE("ranks do together what needs them all, and leave out alone what time does not reach") {
  std::atomic<int> together = 0, alone = 0;
  testing::run_ranks(3, [&](comm::CommWorld& world) {
    const auto group = world.group("sweeps", {0, 1, 2});
    const std::vector<TimedTask> tasks = {{.run = [&] { ++alone; }}, {.run = [&] { ++together; }, .together = true}};
    const std::vector<double> none = time_in_sweeps(tasks, group.get(), 0, 10);
    CHECK(std::isnan(none[0]));
    CHECK(none[1] >= 0);
    const std::vector<double> all = time_in_sweeps(tasks, group.get(), 60, 10);
    CHECK(all[0] >= 0);
    CHECK(largest_of(all[1], group.get()) == all[1]);  // the same on every rank
  });
  CHECK(together == 3 * 11);
  CHECK(alone == 3 * 10);
}

TEST_CASE("where ranks would wait for each other, what they run alone counts as on the slowest") {
  testing::run_ranks(3, [](comm::CommWorld& world) {
    const auto group = world.group("sweeps", {0, 1, 2});
    const auto sleep = [&](int of_rank) {
      if (world.rank() == of_rank) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    };
    const std::vector<TimedTask> tasks = {{.run = [&] { sleep(0); }}, {.run = [&] { sleep(2); }}};
    const std::vector<double> met = time_in_sweeps(tasks, group.get(), 60, 3, 0);
    CHECK(std::min(met[0], met[1]) >= 0.02);  // sleeps are never shorter
  });
}

}  // namespace
}  // namespace sfsdp::tools::timed_tasks_test
