// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/product_peak.h"

#include <algorithm>

namespace sfsdp::train {

double measure_peak_flops(const std::function<double(int64_t n)>& product) {
  constexpr double kSeconds = 0.3;
  constexpr int kRounds = 3;
  double spent = 0, best = 0;
  for (int64_t n = 64; n <= 2048; n *= 2) {
    const double flops = 2.0 * static_cast<double>(n * n * n);
    if (best > 0 && spent + (kRounds + 2) * flops / best > kSeconds) break;
    spent += product(n);
    for (int round = 0; round < kRounds; ++round) {
      const double seconds = product(n);
      spent += seconds;
      if (seconds > 0) best = std::max(best, flops / seconds);
    }
  }
  return best;
}

}  // namespace sfsdp::train
