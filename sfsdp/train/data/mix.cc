// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/mix.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sfsdp/base/check.h"

namespace sfsdp::train {

namespace {
constexpr double kWhole = 1 << 30;                 // the sum of the integer weights, nearly
constexpr int64_t kMostCredit = int64_t{1} << 46;  // of 2^16 sources
}  // namespace

Mix::Mix(std::span<const double> weights) : credits_(weights.size(), 0) {
  SFSDP_CHECK(!weights.empty() && weights.size() < (1 << 16), weights.size(), " sources");
  const double whole = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (const double weight : weights) {
    SFSDP_CHECK(weight > 0 && std::isfinite(weight), "weight ", weight);
    weights_.push_back(std::max<int64_t>(1, std::llround(weight / whole * kWhole)));
  }
  sum_ = std::accumulate(weights_.begin(), weights_.end(), int64_t{0});
}

size_t Mix::draw() {
  for (size_t i = 0; i < weights_.size(); ++i) credits_[i] += weights_[i];
  const auto most = std::max_element(credits_.begin(), credits_.end());
  *most -= sum_;
  return static_cast<size_t>(most - credits_.begin());
}

bool Mix::set_credits(std::span<const int64_t> credits) {
  const auto possible = [](int64_t credit) { return credit > -kMostCredit && credit < kMostCredit; };
  if (credits.size() != credits_.size() || !std::all_of(credits.begin(), credits.end(), possible)) return false;
  if (std::accumulate(credits.begin(), credits.end(), int64_t{0}) != 0) return false;
  credits_.assign(credits.begin(), credits.end());
  return true;
}

}  // namespace sfsdp::train
