// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exported/sizes.h"

#include <doctest/doctest.h>

#include "sfsdp/base/error.h"

namespace sfsdp::exported::sizes_test {
namespace {

// Written apart from value_at, by which sizes are told.
int64_t number_at(const Polynomial& polynomial, const std::vector<int64_t>& point) {
  int64_t sum = 0;
  for (const auto& [powers, factor] : polynomial) {
    int64_t product = factor;
    for (size_t s = 0; s < powers.size(); ++s)
      for (int p = 0; p < powers[s]; ++p) product *= point[s];
    sum += product;
  }
  return sum;
}

std::vector<int64_t> values_of(const Polynomial& polynomial, const Sizes& sizes) {
  std::vector<int64_t> values;
  for (const auto& point : sizes.points()) values.push_back(number_at(polynomial, point));
  return values;
}

Sizes of_batch_and_length(std::optional<int64_t> longest = {}) {
  return Sizes({{"batch", 1, std::nullopt}, {"length", 1, longest}});
}

TEST_CASE("sizes: a number is told from products and sums of sizes, whatever their factors") {
  for (const auto& longest : {std::optional<int64_t>(), std::optional<int64_t>(16), std::optional<int64_t>(1024)}) {
    const Sizes sizes = of_batch_and_length(longest);
    const std::vector<Powers> products = {{1, 0}, {0, 1}, {1, 1}, {2, 0}, {0, 2}, {2, 1}, {1, 2}};
    CHECK(sizes.find(values_of({}, sizes)) == Polynomial{});
    CHECK(sizes.find(values_of({{{0, 0}, 7}}, sizes)) == Polynomial{{{0, 0}, 7}});
    for (const Powers& a : products)
      for (const int64_t factor : {1, 2, 3, 64, 4096, -5}) {
        const Polynomial product = {{a, factor}};
        CHECK(sizes.find(values_of(product, sizes)) == product);
        for (const int64_t number : {1, -1, 8, 1000}) {
          const Polynomial sum = {{{0, 0}, number}, {a, factor}};
          CHECK(sizes.find(values_of(sum, sizes)) == sum);
        }
        for (const Powers& b : products) {
          if (a == b) continue;
          const Polynomial two = {{a, factor}, {b, 11}}, three = {{{0, 0}, -3}, {a, factor}, {b, 11}};
          CHECK(sizes.find(values_of(two, sizes)) == two);
          CHECK(sizes.find(values_of(three, sizes)) == three);
        }
      }
  }
}

TEST_CASE("sizes: what is no sum of products is none") {
  const Sizes sizes = of_batch_and_length();
  const auto of = [&](auto number) {
    std::vector<int64_t> values;
    for (const auto& point : sizes.points()) values.push_back(number(point[0], point[1]));
    return sizes.find(values);
  };
  CHECK(!of([](int64_t, int64_t length) { return length / 2; }));
  CHECK(!of([](int64_t batch, int64_t length) { return batch / 3 + length; }));
  CHECK(!of([](int64_t batch, int64_t length) { return batch % 4 * length; }));
  CHECK(!of([](int64_t batch, int64_t length) { return std::min(batch, length); }));
  CHECK(!of([](int64_t, int64_t length) { return length * length * length; }));
  CHECK(!of([](int64_t, int64_t length) { return length > 100 ? 3 : 2; }));
}

TEST_CASE("sizes: points lie in the ranges and differ, and the last one has the largest sizes") {
  const Sizes sizes({{"batch", 3, 7}, {"length", 100, std::nullopt}, {"width", 1, 30}});
  REQUIRE(sizes.points().size() == Sizes::kPoints);
  for (size_t a = 0; a < sizes.points().size(); ++a) {
    const auto& point = sizes.points()[a];
    CHECK((point[0] >= 3 && point[0] <= 7 && point[1] >= 100 && point[2] >= 1 && point[2] <= 30));
    for (size_t b = 0; b < a; ++b)
      for (size_t s = 0; s < point.size(); ++s) CHECK(point[s] != sizes.points()[b][s]);
  }
  CHECK(sizes.points().back()[0] == 7);
  CHECK(sizes.points().back()[2] == 30);
  CHECK(Sizes({}).find(std::vector<int64_t>(Sizes::kPoints, 4)) == Polynomial{{{}, 4}});
  CHECK_THROWS_WITH_AS(Sizes({{"batch", 1, 4}}), doctest::Contains("size batch may vary from 1 to 4"), UserError);
}

}  // namespace
}  // namespace sfsdp::exported::sizes_test
