// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/permutation.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "sfsdp/base/check.h"

namespace sfsdp::train::permutation_test {

namespace {

std::vector<int64_t> all_of(int64_t size, uint64_t key, int64_t epoch) {
  const Permutation permutation(size, key, epoch);
  std::vector<int64_t> out;
  for (int64_t i = 0; i < size; ++i) out.push_back(permutation[i]);
  return out;
}

}  // namespace

TEST_CASE("a permutation has every number once, for all small sizes and some large ones") {
  std::vector<int64_t> sizes(130);
  std::iota(sizes.begin(), sizes.end(), 1);
  for (const int64_t size : {1000, 4095, 4096, 4097, 100003}) sizes.push_back(size);
  for (const int64_t size : sizes)
    for (const uint64_t key : {0, 1, 77}) {
      std::vector<int64_t> numbers = all_of(size, key, static_cast<int64_t>(key % 3));
      std::sort(numbers.begin(), numbers.end());
      bool complete = true;
      for (int64_t i = 0; i < size; ++i) complete = complete && numbers[static_cast<size_t>(i)] == i;
      CHECK_MESSAGE(complete, "size ", size, " key ", key);
    }
}

TEST_CASE("numbers beyond 32 bits are permuted too") {
  const int64_t size = (int64_t{1} << 41) + 12345;
  const Permutation permutation(size, 5, 0);
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 1000; ++i) {
    const int64_t place = permutation[size - 1 - i];
    CHECK((place >= 0 && place < size));
    seen.insert(place);
  }
  CHECK(seen.size() == 1000);
  CHECK(*seen.rbegin() > size / 2);
}

TEST_CASE("key and epoch decide the order, and each of them changes it") {
  const auto first = all_of(1000, 1, 0);
  CHECK(first == all_of(1000, 1, 0));
  CHECK(first != all_of(1000, 1, 1));
  CHECK(first != all_of(1000, 2, 0));
}

// Orders of 4 are 24; a uniform choice has each in 1/24 of the keys. 23 degrees of freedom: chi^2 above 60 has a chance of
// less than 1e-4. With the next size up, pairs (first, second) of 5 are 20.
TEST_CASE("over the keys all orders come equally often") {
  constexpr int kKeys = 24000;
  std::vector<int> counts(256, 0);
  for (uint64_t key = 0; key < kKeys; ++key) {
    const auto order = all_of(4, key, 0);
    ++counts[static_cast<size_t>(order[0] * 64 + order[1] * 16 + order[2] * 4 + order[3])];
  }
  double chi = 0;
  int orders = 0;
  for (const int count : counts)
    if (count > 0) {
      ++orders;
      chi += std::pow(count - kKeys / 24.0, 2) / (kKeys / 24.0);
    }
  CHECK(orders == 24);
  CHECK(chi < 60);
}

// Where a number goes says nothing about where its neighbour goes: the mean distance of two uniform places is size / 3.
TEST_CASE("neighbours do not stay neighbours") {
  const auto order = all_of(100000, 3, 2);
  double distance = 0;
  for (size_t i = 0; i + 1 < order.size(); ++i) distance += std::abs(static_cast<double>(order[i + 1] - order[i]));
  CHECK(distance / 1e5 / 1e5 == doctest::Approx(1.0 / 3).epsilon(0.01));
  CHECK_THROWS_AS(Permutation(0, 0, 0), InternalError);
  CHECK_THROWS_AS(Permutation(4, 0, 0)[4], InternalError);
}

}  // namespace sfsdp::train::permutation_test
