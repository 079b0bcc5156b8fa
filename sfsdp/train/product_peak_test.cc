// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/product_peak.h"

#include <doctest/doctest.h>

#include <algorithm>

namespace sfsdp::train::product_peak_test {
namespace {

double flops_of(int64_t n) { return 2.0 * static_cast<double>(n * n * n); }

// A thread that multiplies at `speed` flops per second, and takes `small` seconds for each product besides.
struct Thread {
  double speed = 0, small = 1e-6;
  int64_t largest = 0, products = 0;
  double processor = 0;

  double operator()(int64_t n) {
    const double seconds = small + flops_of(n) / speed;
    largest = std::max(largest, n);
    processor += seconds;
    ++products;
    return seconds;
  }
};

TEST_CASE("a peak is that of a thread, measured in 0.3 s of it, of larger products where they are faster") {
  for (const double speed : {1e9, 50e9, 5e12}) {
    CAPTURE(speed);
    Thread thread{.speed = speed};
    const double peak = measure_peak_flops([&](int64_t n) { return thread(n); });
    CHECK(peak > 0.98 * speed);
    CHECK(peak <= speed);
    CHECK(thread.processor < 0.31);
    CHECK(thread.largest == (speed < 2e9 ? 256 : speed < 1e11 ? 1024 : 2048));
  }
}

TEST_CASE("a product that is slow once, as the first one of a size, decides nothing") {
  Thread thread{.speed = 50e9};
  CHECK(measure_peak_flops([&](int64_t n) { return thread(n) * (thread.products % 4 == 1 ? 100 : 1); }) > 0.9 * 50e9);
}

TEST_CASE("a clock that stands still gives no peak") {
  CHECK(measure_peak_flops([](int64_t) { return 0.0; }) == 0);
}

}  // namespace
}  // namespace sfsdp::train::product_peak_test
