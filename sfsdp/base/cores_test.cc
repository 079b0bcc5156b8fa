// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/base/cores.h"

#include <doctest/doctest.h>

#include <thread>
#include <vector>

#include "sfsdp/testing/one_core.h"

namespace sfsdp::cores_test {
namespace {

TEST_CASE("cores: those that this thread may run on, not those of the machine") {
  const std::vector<int> before = cores_of(0);
  REQUIRE(!before.empty());
  CHECK(usable_cores() == std::ssize(before));
  {
    const testing::OneCore bound;
    CHECK(usable_cores() == 1);
    CHECK(cores_of(0) == std::vector<int>{before.back()});
    int64_t of_a_new_thread = 0;
    std::thread([&] { of_a_new_thread = usable_cores(); }).join();
    CHECK(of_a_new_thread == 1);
  }
  CHECK(cores_of(0) == before);
}

TEST_CASE("cores: a process that is not there has none") { CHECK(cores_of(1 << 30).empty()); }

TEST_CASE("cores: ranks share those of their host, each has one") {
  CHECK(share_of_cores(16, 4) == 4);
  CHECK(share_of_cores(17, 4) == 4);
  CHECK(share_of_cores(2, 8) == 1);
  CHECK(share_of_cores(0, 0) == 1);
  CHECK(share_of_cores(3, 1) == 3);
}

}  // namespace
}  // namespace sfsdp::cores_test
