// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/base/least_recent.h"

#include <doctest/doctest.h>

#include <string>
#include <utility>

#include "sfsdp/base/held.h"

namespace sfsdp::least_recent_test {
namespace {

TEST_CASE("the entry that was used longest ago makes place, and a look-up is a use") {
  LeastRecent<std::string, int> kept(2);
  CHECK_FALSE(kept.insert("a", 1));
  CHECK_FALSE(kept.insert("b", 2));
  REQUIRE(kept.find("a") != nullptr);
  CHECK(*kept.find("a") == 1);
  CHECK(kept.insert("c", 3) == std::pair<std::string, int>("b", 2));
  CHECK(kept.find("b") == nullptr);
  CHECK(kept.insert("b", 4) == std::pair<std::string, int>("a", 1));
  CHECK(*kept.find("c") == 3);
  CHECK(*kept.find("b") == 4);
  CHECK(kept.size() == 2);
}

struct Whole {
  int part = 7;
};

template <class Pointer>
constexpr bool can_read = requires(Pointer&& pointer) {
  std::forward<Pointer>(pointer)->part;
};

TEST_CASE("a held pointer is read by its name alone, and keeps what it points to") {
  static_assert(can_read<const Held<Whole>&>);
  static_assert(!can_read<Held<Whole>> && !can_read<const Held<Whole>>);
  auto owner = std::make_shared<Whole>();
  const Held<Whole> held(owner);
  owner.reset();
  CHECK(held->part == 7);
  CHECK(static_cast<bool>(held));
  CHECK_FALSE(static_cast<bool>(Held<Whole>()));
}

}  // namespace
}  // namespace sfsdp::least_recent_test
