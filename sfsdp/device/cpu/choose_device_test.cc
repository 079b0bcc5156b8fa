// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/device/cpu/choose_device.h"

#include <doctest/doctest.h>

namespace sfsdp::device::choose_device_test {
namespace {

TEST_CASE("lanes have threads where each rank has a core that computes nothing") {
  CHECK(lanes_for({.count = 2, .ranks = 2, .threads = 1}) == "inline");
  CHECK(lanes_for({.count = 3, .ranks = 2, .threads = 1}) == "inline");  // one core for two threads
  CHECK(lanes_for({.count = 4, .ranks = 2, .threads = 1}) == "threads");
  CHECK(lanes_for({.count = 4, .ranks = 2, .threads = 2}) == "inline");
  CHECK(lanes_for({.count = 16, .ranks = 8, .threads = 1}) == "threads");
  CHECK(lanes_for({.count = 16, .ranks = 1, .threads = 8}) == "inline");  // it talks to nobody
  CHECK(lanes_for({.count = 1, .ranks = 4, .threads = 1}) == "inline");
  CHECK(!cpu_device("auto", {.count = 2, .ranks = 2, .threads = 1}));
  CHECK(cpu_device("threads", {.count = 2, .ranks = 2, .threads = 1}));
  CHECK(!cpu_device("inline", {.count = 8, .ranks = 2, .threads = 1}));
}

}  // namespace
}  // namespace sfsdp::device::choose_device_test
