// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/mix.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace sfsdp::train::mix_test {

namespace {

std::string draws(Mix& mix, int n) {
  std::string text;
  for (int i = 0; i < n; ++i) text += static_cast<char>('a' + static_cast<char>(mix.draw()));
  return text;
}

Mix mix_of(std::vector<double> weights) { return Mix(weights); }

}  // namespace

// By hand: credits after each +5 +1 +1, the largest pays 7:
// 5 1 1 -> a: -2 1 1; 3 2 2 -> a: -4 2 2; 1 3 3 -> b: 1 -4 3; 6 -3 4 -> a: -1 -3 4; 4 -2 5 -> c: 4 -2 -2; 9 -1 -1 -> a;
// 2 -1 -1 -> 7 0 0 -> a: 0 0 0.
TEST_CASE("weights 5, 1, 1 draw a a b a c a a") {
  Mix mix = mix_of({5, 1, 1});
  CHECK(draws(mix, 7) == "aabacaa");
  CHECK(draws(mix, 7) == "aabacaa");
}

TEST_CASE("equal weights take turns, and one source is always drawn") {
  Mix three = mix_of({0.1, 0.1, 0.1});
  CHECK(draws(three, 6) == "abcabc");
  Mix one = mix_of({1e-300});
  CHECK(draws(one, 3) == "aaa");
}

TEST_CASE("after any number of draws each source has its share, give or take the number of sources") {
  const std::vector<std::vector<double>> mixes = {
      {0.7, 0.2, 0.1}, {1, 1}, {100, 1}, {3, 1e-3, 2, 5, 0.25}, {1e300, 1e300, 5e299}};
  for (const auto& weights : mixes) {
    Mix mix{weights};
    double sum = 0;
    for (const double w : weights) sum += w / weights[0];
    std::vector<double> counts(weights.size(), 0);
    for (int n = 1; n <= 20000; ++n) {
      ++counts[mix.draw()];
      for (size_t i = 0; i < weights.size(); ++i)
        if (std::abs(counts[i] - n * (weights[i] / weights[0] / sum)) > static_cast<double>(weights.size()))
          FAIL("source ", i, " of ", weights.size(), " has ", counts[i], " of ", n);
    }
  }
}

TEST_CASE("credits go on where they stopped; impossible ones are refused") {
  Mix whole = mix_of({0.7, 0.2, 0.1}), head = whole;
  const std::string expected = draws(whole, 50);
  for (int cut = 0; cut <= 50; ++cut) {
    Mix first = mix_of({0.7, 0.2, 0.1}), rest = mix_of({0.7, 0.2, 0.1});
    const std::string begin = draws(first, cut);
    REQUIRE(rest.set_credits(first.credits()));
    CHECK(begin + draws(rest, 50 - cut) == expected);
  }
  CHECK_FALSE(head.set_credits(std::vector<int64_t>{0, 0}));
  CHECK_FALSE(head.set_credits(std::vector<int64_t>{1, 0, 0}));
  const int64_t least = std::numeric_limits<int64_t>::min();
  CHECK_FALSE(head.set_credits(std::vector<int64_t>{least, least, 0}));
  CHECK(draws(head, 50) == expected);
}

// New weights hold from the change on; what was drawn before is not made up for.
TEST_CASE("other weights go on from old credits") {
  Mix before = mix_of({0.9, 0.1}), after = mix_of({0.1, 0.9});
  draws(before, 1005);
  REQUIRE(after.set_credits(before.credits()));
  int a = 0;
  for (const char c : draws(after, 1000)) a += c == 'a' ? 1 : 0;
  CHECK(std::abs(a - 100) <= 2);
}

}  // namespace sfsdp::train::mix_test
