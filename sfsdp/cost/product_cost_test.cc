// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/product_cost.h"
#include "sfsdp/testing/source_dir.h"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <random>
#include <string>

namespace sfsdp::cost::product_cost_test {
namespace {

// 10 multiprocessors of 1 flop/s each, tiles of 128 × 256; memory as fast as `bandwidth` bytes/s.
Machine ten(double half_k = 0, double bandwidth = 1e30) {
  Machine m;
  m.multiprocessors = 10;
  m.half_k = half_k;
  m.memory_bandwidth = bandwidth;
  m.memory_efficiency = 1;
  return m;
}

double seconds(const ProductShape& shape, const Machine& m) { return product_seconds(shape, 10, m); }

// Seconds of one multiprocessor for one tile of 128 × 256 of this depth.
double tile(double depth) { return 2 * 128 * 256 * depth; }

TEST_CASE("products: whole waves of large tiles take their flops, and each tile half_k more") {
  CHECK(seconds({.m = 1280, .n = 512, .k = 1000}, ten()) == doctest::Approx(2 * tile(1000)));  // 20 tiles, 2 waves
  CHECK(seconds({.m = 1280, .n = 512, .k = 1000}, ten(100)) == doctest::Approx(2 * tile(1100)));
  CHECK(seconds({.batch = 10, .m = 128, .n = 512, .k = 200}, ten()) == doctest::Approx(2 * tile(200)));
  CHECK(seconds({.m = 0, .n = 512, .k = 200}, ten()) == 0);
}

TEST_CASE("products: what fills a part of the multiprocessors is split over its depth, for partial sums in memory") {
  const ProductShape deep = {.m = 256, .n = 512, .k = 10000};  // 4 tiles
  // Two parts of each keep 8 of 10 busy for half of the depth; three would be two waves of a third.
  CHECK(seconds(deep, ten()) == doctest::Approx(tile(5000)));
  // The partial sums of two parts are written and read: 2 · 4 · 2 · m · n bytes.
  CHECK(seconds(deep, ten(0, 1.0)) == doctest::Approx(tile(5000) + 2 * 4 * 2 * 256 * 512));
  // With half_k = 5000 every split pays it again: 8 tiles of 128 × 128 are cheaper. The same where memory is slow.
  const double smaller = (1 + 51.0 / 256) / 2;
  CHECK(seconds(deep, ten(5000)) == doctest::Approx(smaller * tile(10000 + 5000)));
  CHECK(seconds(deep, ten(0, 1e-3)) == doctest::Approx(smaller * tile(10000)));
}

TEST_CASE("products: a part of a split takes no less than a depth of 256") {
  CHECK(seconds({.m = 64, .n = 64, .k = 600}, ten()) == doctest::Approx(2 * 64 * 64 * 256));
  CHECK(seconds({.m = 64, .n = 64, .k = 500}, ten()) == doctest::Approx(2 * 64 * 64 * 256));
  CHECK(seconds({.m = 64, .n = 64, .k = 200}, ten()) == doctest::Approx(2 * 64 * 64 * 200));
}

TEST_CASE("products: a wave lasts as long as its fullest tile") {
  // 9 tiles; a row more makes a tenth of height 1, which takes no longer than they, nor makes them faster.
  CHECK(seconds({.m = 1152, .n = 256, .k = 200}, ten()) == doctest::Approx(tile(200)));
  CHECK(seconds({.m = 1153, .n = 256, .k = 200}, ten()) == doctest::Approx(tile(200)));
}

TEST_CASE("products: on every machine, larger in one dimension never takes less") {
  std::mt19937_64 random(7);
  const auto pick = [&](double most) {  // small and large ones alike
    return std::floor(std::exp2(std::log2(most) * static_cast<double>(random() >> 11) * 0x1p-53));
  };
  for (const auto& entry : std::filesystem::directory_iterator(testing::source_dir() + "/machines")) {
    const Machine machine = load_machine(entry.path().string());
    const auto seconds_of = [&](const ProductShape& s) { return product_seconds(s, 1e14, machine); };
    for (int i = 0; i < 500; ++i) {
      const ProductShape s = {.batch = pick(16), .m = pick(20000), .n = pick(20000), .k = pick(20000)};
      const double now = seconds_of(s) * (1 - 1e-12);
      CAPTURE(machine.name);
      CAPTURE(s.batch);
      CAPTURE(s.m);
      CAPTURE(s.n);
      CAPTURE(s.k);
      for (const double more : {1.0, pick(300), pick(20000)}) {
        CAPTURE(more);
        CHECK(seconds_of({.batch = s.batch + more, .m = s.m, .n = s.n, .k = s.k}) >= now);
        CHECK(seconds_of({.batch = s.batch, .m = s.m + more, .n = s.n, .k = s.k}) >= now);
        CHECK(seconds_of({.batch = s.batch, .m = s.m, .n = s.n + more, .k = s.k}) >= now);
        CHECK(seconds_of({.batch = s.batch, .m = s.m, .n = s.n, .k = s.k + more}) >= now);
      }
    }
  }
}

TEST_CASE("products: smaller tiles fill a shallow product's wave, and are slower for their loads") {
  // 7 tiles of 128 × 256 are a wave; 14 of 128 × 128 are two; nothing to gain.
  CHECK(seconds({.m = 896, .n = 256, .k = 200}, ten()) == doctest::Approx(tile(200)));
  // 5 tiles of 128 × 256 or 10 of 128 × 128, each 1 + 51 / 256 times as slow as half of one.
  CHECK(seconds({.m = 640, .n = 256, .k = 200}, ten()) == doctest::Approx(tile(200) / 2 * (1 + 51.0 / 256)));
}

TEST_CASE("products: a weight gradient of 896 × 896 over many tokens fills an H100, and more work never takes less") {
  const Machine h100 = load_machine("dgx_h100");
  const double rate = 989e12 * 0.72;
  const ProductShape gradient = {.m = 896, .n = 896, .k = 32768};
  const double flops = 2 * gradient.m * gradient.n * gradient.k;
  CHECK(flops / rate / product_seconds(gradient, rate, h100) > 0.6);  // 28 of 132 multiprocessors, unsplit: 0.21
  CHECK(flops / rate / product_seconds(gradient, rate, h100) < 1);
  for (const double k : {300.0, 4096.0, 32768.0}) {
    double before = 0;
    for (double m = 64; m <= 16384; m *= 2) {
      const double now = product_seconds({.m = m, .n = 1024, .k = k}, rate, h100);
      CHECK(now >= before);
      before = now;
    }
  }
}

TEST_CASE("products: without multiprocessors there are no waves, depth alone counts") {
  Machine m;
  m.half_k = 100;
  CHECK(product_seconds({.m = 3, .n = 5, .k = 300}, 2, m) == doctest::Approx(2 * 3 * 5 * 300 / 2.0 * 400 / 300));
}

}  // namespace
}  // namespace sfsdp::cost::product_cost_test
