// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/device_memory.h"

#include <doctest/doctest.h>

namespace sfsdp::cost::device_memory_test {
namespace {

TEST_CASE("device memory: a context, a communicator for each axis in use and one for all; nothing on a processor") {
  constexpr int64_t kMiB = 1 << 20;
  Machine machine;
  machine.multiprocessors = 132;
  CHECK(bytes_outside(machine, {}) == 512 * kMiB);
  CHECK(bytes_outside(machine, {{"dp_replicate", 1}, {"dp_shard", 8}}) == (512 + 688) * kMiB);
  CHECK(bytes_outside(machine, {{"dp_replicate", 2}, {"dp_shard", 8}}) == (512 + 3 * 688) * kMiB);
  machine.multiprocessors = 1;
  CHECK(bytes_outside(machine, {{"dp_shard", 8}}) == 0);
}

TEST_CASE("device memory: a GiB that is given back and asked for again takes 31 ms") {
  CHECK(moving_seconds(0) == 0);
  CHECK(moving_seconds(2.0 * (1 << 30)) == doctest::Approx(0.0312));
}

}  // namespace
}  // namespace sfsdp::cost::device_memory_test
