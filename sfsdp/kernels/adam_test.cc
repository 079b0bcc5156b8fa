// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/kernels/adam.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "sfsdp/kernels/family.h"

namespace sfsdp::kernels::adam_test {
namespace {

std::vector<float> numbers(size_t count, std::mt19937& random, float scale) {
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> all(count);
  for (float& x : all) x = normal(random);
  return all;
}

}  // namespace

// Steps in a row, held against float64 after each: what stands in memory is what the next one starts with.
TEST_CASE("Adam and AdamW: float64's updates, with clipping and decay, tails of every length") {
  for (const bool decoupled : {true, false})
    for (const size_t count : {1, 7, 16, 31, 32, 100}) {
      CAPTURE(decoupled);
      CAPTURE(count);
      std::mt19937 random(3);
      std::vector<float> p = numbers(count, random, 1), m = numbers(count, random, 0.1f),
                         v = numbers(count, random, 0.1f);
      for (float& x : v) x *= x;
      if (count > 1) m[1] = v[1] = 0;
      for (const double step : {1.0, 2.0, 1000.0}) {
        std::vector<float> g = numbers(count, random, 0.3f);
        if (count > 1) g[1] = 0;  // nothing but decay
        const std::vector<float> p0 = p, m0 = m, v0 = v;
        Adam call = {.param = p.data(),
                     .exp_avg = m.data(),
                     .exp_avg_sq = v.data(),
                     .grad = g.data(),
                     .count = static_cast<int64_t>(count),
                     .clip = 0.7f,
                     .decoupled = decoupled,
                     .lr = 1e-2,
                     .beta1 = 0.9,
                     .beta2 = 0.95,
                     .eps = 1e-8,
                     .weight_decay = 0.1,
                     .step = step};
        adam(call);
        for (size_t i = 0; i < count; ++i) {
          double grad = static_cast<double>(g[i]) * 0.7f, param = p0[i];
          if (decoupled)
            param *= 1 - 1e-2 * 0.1;
          else
            grad += 0.1 * param;
          const double first = m0[i] + (grad - m0[i]) * (1 - 0.9), second = v0[i] * 0.95 + grad * grad * (1 - 0.95);
          const double denominator = std::sqrt(second) / std::sqrt(1 - std::pow(0.95, step)) + 1e-8;
          const double change = 1e-2 / (1 - std::pow(0.9, step)) * first / denominator;
          REQUIRE(std::abs(m[i] - first) <= 2e-7 * (std::abs(m0[i]) + std::abs(grad)));
          REQUIRE(std::abs(v[i] - second) <= 3e-7 * second);
          REQUIRE(std::abs(p[i] - (param - change)) <= 2e-7 * std::abs(param) + 1e-6 * std::abs(change) + 1e-30);
        }
      }
    }
}

// After a large gradient a small one: without a memory of the first, the moment is the second.
TEST_CASE("Adam: beta1 = 0 keeps the gradient alone") {
  std::vector<float> p(20, 1.0f), m(20, 100.0f), v(20, 1e4f);
  const std::vector<float> g(20, 1e-6f);
  adam({.param = p.data(),
        .exp_avg = m.data(),
        .exp_avg_sq = v.data(),
        .grad = g.data(),
        .count = 20,
        .lr = 0.1,
        .beta1 = 0,
        .beta2 = 0.95,
        .eps = 1e-8,
        .step = 2});
  for (const float x : m) CHECK(x == 1e-6f);
}

TEST_CASE("Adam: every family of processors updates as the first one does, and nothing past the end") {
  for (const Family& family : families()) {
    CAPTURE(family.name);
    std::mt19937 random(4);
    const std::vector<float> g = numbers(50, random, 1);
    std::vector<float> p(50, 0.5f), m(50, 0), v(50, 0), same = p, same_m = m, same_v = v;
    const AdamFactors factors = {.decay = 0.99f,
                                 .first = 0.9f,
                                 .rest_of_first = 0.1f,
                                 .second = 0.95f,
                                 .rest_of_second = 0.05f,
                                 .eps = 1e-8f,
                                 .size = 0.1f,
                                 .root = 0.22f};
    Adam call;
    call.grad = g.data();
    call.count = 45;
    call.param = p.data(), call.exp_avg = m.data(), call.exp_avg_sq = v.data();
    family.adam(call, factors);
    call.param = same.data(), call.exp_avg = same_m.data(), call.exp_avg_sq = same_v.data();
    families()[0].adam(call, factors);
    for (size_t i = 0; i < 50; ++i) CHECK(std::abs(p[i] - same[i]) <= 1e-6f);
    for (size_t i = 45; i < 50; ++i) CHECK((p[i] == 0.5f && m[i] == 0 && v[i] == 0));
    CHECK(p[0] != 0.5f);
  }
}

}  // namespace sfsdp::kernels::adam_test
