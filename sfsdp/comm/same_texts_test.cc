// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/comm/same_texts.h"

#include <doctest/doctest.h>

#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/testing/run_ranks.h"

namespace sfsdp::comm {
namespace {

// What each rank is told; "" where all is well.
std::vector<std::string> compare(const std::vector<std::string>& plans, const std::vector<std::string>& programs) {
  std::vector<std::string> said(plans.size());
  testing::run_ranks(static_cast<int>(plans.size()), [&](CommWorld& world) {
    const auto rank = static_cast<size_t>(world.rank());
    const auto explain = [](const std::string& ours, const std::string& theirs) { return ours + " / " + theirs; };
    const RankText texts[] = {{"plans", plans[rank], "expected one plan"},
                              {"programs", programs[rank], "expected one program", explain}};
    try {
      expect_same_texts(world, texts);
    } catch (const UserError& error) {
      said[rank] = error.what();
    }
  });
  return said;
}

TEST_CASE("ranks with the same texts go on, and can compare again") {
  CHECK(compare({"a\nb", "a\nb", "a\nb"}, {"", "", ""}) == std::vector<std::string>(3));
}

TEST_CASE("the first text that differs is told on all ranks: who, where, meaning, advice") {
  const std::string plans =
      "rank 0 and rank 2 have different plans; first difference, line 2:\n    b\n    c\n  expected one plan";
  CHECK(compare({"a\nb", "a\nb", "a\nc"}, {"x", "y", "x"}) == std::vector<std::string>(3, plans));
  const std::string programs =
      "rank 0 and rank 1 have different programs; first difference, line 2:\n    (nothing)\n    y\n  x / x\ny\n"
      "  expected one program";
  CHECK(compare({"a", "a"}, {"x", "x\ny"}) == std::vector<std::string>(2, programs));
}

}  // namespace
}  // namespace sfsdp::comm
