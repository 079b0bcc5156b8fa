// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/kernels/cross_entropy.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "sfsdp/base/half.h"
#include "sfsdp/kernels/family.h"

namespace sfsdp::kernels::cross_entropy_test {
namespace {

struct Data {
  int64_t rows, classes;
  bool half;
  std::vector<float> wide, wide_grad;
  std::vector<uint16_t> narrow, narrow_grad;
  std::vector<int64_t> targets;
  std::vector<float> log_sums, losses, factors;

  Data(int64_t r, int64_t c, bool is_half, float scale = 2)
      : rows(r), classes(c), half(is_half), log_sums(static_cast<size_t>(r)), losses(log_sums), factors(log_sums) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal(0, scale);
    const auto count = static_cast<size_t>(r * c);
    wide.resize(count);
    for (float& x : wide) x = normal(random);
    if (half)
      for (float& x : wide) {
        narrow.push_back(to_bf16(x));
        x = from_bf16(narrow.back());
      }
    wide_grad.resize(count);
    narrow_grad.resize(count);
    for (int64_t i = 0; i < r; ++i) targets.push_back(i % 3 == 2 || c == 0 ? -100 : (7 * i + c - 1) % c);
    for (float& x : factors) x = normal(random);
  }
  CrossEntropy call(bool by_row) {
    return {.classes = classes,
            .dtype = half ? ir::DType::bf16 : ir::DType::f32,
            .logits = half ? static_cast<const void*>(narrow.data()) : wide.data(),
            .targets = targets.data(),
            .ignored = -100,
            .log_sums = log_sums.data(),
            .losses = losses.data(),
            .factors = factors.data(),
            .factor_by_row = by_row,
            .grad = half ? static_cast<void*>(narrow_grad.data()) : wide_grad.data()};
  }
  double grad(size_t i) const { return half ? from_bf16(narrow_grad[i]) : wide_grad[i]; }
};

TEST_CASE("cross entropy: losses and gradients of float64, on every family of processors that this one is of") {
  for (const bool half : {false, true})
    for (const int64_t classes : {1, 3, 16, 31, 1000, 40'000})
      for (const Family& family : families()) {
        CAPTURE(half);
        CAPTURE(classes);
        CAPTURE(family.name);
        Data d(8, classes, half);
        const bool by_row = classes % 2 == 0;
        const CrossEntropy call = d.call(by_row);
        family.cross_entropy(call, 0, 8);
        family.cross_entropy_backward(call, 0, 8);
        double off = 0, size = 0;
        for (int64_t r = 0; r < 8; ++r) {
          const float* row = d.wide.data() + r * classes;
          double sum = 0;
          for (int64_t i = 0; i < classes; ++i) sum += std::exp(static_cast<double>(row[i]));
          const int64_t target = d.targets[static_cast<size_t>(r)];
          const double log_sum = std::log(sum), loss = target == -100 ? 0 : log_sum - row[target];
          REQUIRE(std::abs(d.log_sums[static_cast<size_t>(r)] - log_sum) <= 3e-7 * (1 + std::abs(log_sum)));
          REQUIRE(std::abs(d.losses[static_cast<size_t>(r)] - loss) <= 6e-7 * (1 + std::abs(log_sum)));
          for (int64_t i = 0; i < classes; ++i) {
            const double p = std::exp(row[i] - log_sum) - (i == target ? 1 : 0);
            const double expected = target == -100 ? 0 : p * d.factors[by_row ? static_cast<size_t>(r) : 0];
            const double got = d.grad(static_cast<size_t>(r * classes + i));
            if (target == -100) REQUIRE(got == 0);
            off += (got - expected) * (got - expected);
            size += expected * expected;
          }
        }
        if (classes > 1) CHECK(std::sqrt(off / size) < (half ? 3e-3 : 5e-7));
      }
}

TEST_CASE("cross entropy: large, infinite and undefined logits") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const Family& family : families()) {
    CAPTURE(family.name);
    Data d(4, 20, false);
    d.targets = {0, 1, 2, 3};
    for (float& x : d.wide) x += 1e4F;
    d.wide[5] = -inf;      // a class that cannot be
    d.wide[20 + 7] = nan;  // rows 1 and 2 have no loss
    d.wide[40 + 19] = inf;
    const CrossEntropy call = d.call(false);
    family.cross_entropy(call, 0, 4);
    family.cross_entropy_backward(call, 0, 4);
    for (size_t r = 0; r < 4; ++r) {
      CAPTURE(r);
      CHECK(std::isfinite(d.losses[r]) == (r == 0 || r == 3));
      CHECK(std::isfinite(d.wide_grad[20 * r]) == (r == 0 || r == 3));
    }
    CHECK(d.wide_grad[5] == 0);
  }
}

TEST_CASE("cross entropy: logits that are large alike have the loss of small ones") {
  for (const Family& family : families()) {
    CAPTURE(family.name);
    Data small(6, 40, true), large(6, 40, true);  // multiples of 2^-8 at least: with 1024 added a float holds them
    for (size_t i = 0; i < small.wide.size(); ++i) {
      small.wide[i] = std::round(small.wide[i] * 64) / 64;
      large.wide[i] = small.wide[i] + 4096;
    }
    small.half = large.half = false;
    const CrossEntropy few = small.call(false), many = large.call(false);
    family.cross_entropy(few, 0, 6);
    family.cross_entropy(many, 0, 6);
    CHECK(small.losses == large.losses);
  }
}

// The part has classes 40 to 76, and their targets alone; backward is given the sum of all parts.
TEST_CASE("cross entropy: a part of the classes leaves its largest logit, its sum and its targets, on every family") {
  for (const bool half : {false, true})
    for (const Family& family : families()) {
      CAPTURE(half);
      CAPTURE(family.name);
      Data d(8, 37, half);
      for (int64_t& target : d.targets)
        if (target != -100) target += 40;
      d.targets[0] = 39;  // another part's
      d.targets[1] = 77;
      CrossEntropy call = d.call(true);
      std::vector<float> parts(24), sums(8);
      call.first = 40;
      call.rows = 8;
      call.parts = parts.data();
      family.cross_entropy_parts(call, 3, 8);
      family.cross_entropy_parts(call, 0, 3);
      for (size_t r = 0; r < 8; ++r) {
        const float* row = d.wide.data() + r * 37;
        double sum = 0;
        for (size_t i = 0; i < 37; ++i) sum += std::exp(static_cast<double>(row[i]) - parts[r]);
        const int64_t own = d.targets[r] - 40;
        const bool is_own = own >= 0 && own < 37;
        REQUIRE(parts[r] == *std::max_element(row, row + 37));
        REQUIRE(std::abs(parts[8 + r] - sum) <= 3e-7 * sum);
        REQUIRE(parts[16 + r] == (is_own ? row[own] : 0));
        sums[r] = static_cast<float>(parts[r] + std::log(2 * sum));  // as if the others had as much
      }
      call.given_sums = sums.data();
      family.cross_entropy_backward(call, 0, 8);
      for (size_t r = 0; r < 8; ++r)
        for (size_t i = 0; i < 37; ++i) {
          const double p = std::exp(static_cast<double>(d.wide[r * 37 + i]) - sums[r]) -
                           (d.targets[r] == 40 + static_cast<int64_t>(i) ? 1 : 0);
          const double expected = d.targets[r] == -100 ? 0 : p * d.factors[r];
          REQUIRE(std::abs(d.grad(r * 37 + i) - expected) <= (half ? 4e-3 : 4e-7) * (1 + std::abs(expected)));
        }
    }
}

// What stands after the classes that count is not a number: who reads it is seen.
TEST_CASE("cross entropy: logits that stand after the counted classes are not read, and have no gradient") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const int64_t counted : {0, 1, 15, 16, 17, 36})
    for (const Family& family : families()) {
      CAPTURE(counted);
      CAPTURE(family.name);
      Data all(4, 37, false), some(4, counted, false);
      some.factors = all.factors;
      for (size_t r = 0; r < 4; ++r) {
        all.targets[r] = some.targets[r] = static_cast<int64_t>(r);  // another part's where it is none of these
        for (size_t i = 0; i < 37; ++i)
          if (static_cast<int64_t>(i) < counted)
            some.wide[r * static_cast<size_t>(counted) + i] = all.wide[r * 37 + i];
          else
            all.wide[r * 37 + i] = nan;
      }
      std::vector<float> parts(12), expected(12), sums(4, 3);
      const auto run = [&](Data& d, std::vector<float>& into, int64_t in_front) {
        CrossEntropy call = d.call(true);
        call.counted = in_front;
        call.rows = 4;
        call.parts = into.data();
        call.given_sums = sums.data();
        family.cross_entropy_parts(call, 0, 4);
        family.cross_entropy_backward(call, 0, 4);
      };
      run(all, parts, counted);
      run(some, expected, -1);
      CHECK(parts == expected);
      for (size_t r = 0; r < 4; ++r)
        for (size_t i = 0; i < 37; ++i)
          CHECK(all.wide_grad[r * 37 + i] ==
                (static_cast<int64_t>(i) < counted ? some.wide_grad[r * static_cast<size_t>(counted) + i] : 0));
    }
}

TEST_CASE("cross entropy: rows may be computed in parts") {
  Data whole(9, 50, true), parts(9, 50, true);
  cross_entropy(whole.call(true), 0, 9);
  cross_entropy_backward(whole.call(true), 0, 9);
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{5, 9}, {0, 5}})
    cross_entropy(parts.call(true), begin, end);
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{5, 9}, {0, 5}})
    cross_entropy_backward(parts.call(true), begin, end);
  CHECK(whole.losses == parts.losses);
  CHECK(whole.narrow_grad == parts.narrow_grad);
}

}  // namespace
}  // namespace sfsdp::kernels::cross_entropy_test
