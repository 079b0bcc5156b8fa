// SPDX-License-Identifier: BSD-3-Clause
// Choices among several options each, such that of any two options all pairs of values are met: few programs that cover what
// belongs together.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

namespace sfsdp::testing {

// A value of each option.
template <size_t N>
using Choice = std::array<int, N>;

using Pair = std::tuple<size_t, int, size_t, int>;

template <size_t N>
std::vector<Pair> pairs_of(const Choice<N>& choice) {
  std::vector<Pair> pairs;
  for (size_t a = 0; a < N; ++a)
    for (size_t b = a + 1; b < N; ++b) pairs.emplace_back(a, choice[a], b, choice[b]);
  return pairs;
}

//   counts: how many values each option has
template <size_t N>
std::vector<Choice<N>> all_choices(const Choice<N>& counts) {
  std::vector<Choice<N>> every = {{}};
  for (size_t f = 0; f < N; ++f) {
    std::vector<Choice<N>> longer;
    for (const Choice<N>& choice : every)
      for (int v = 0; v < counts[f]; ++v) {
        longer.push_back(choice);
        longer.back()[f] = v;
      }
    every = std::move(longer);
  }
  return every;
}

// Which pairs there were, an entry each: a set of them takes minutes to ask for 10^8 pairs.
template <size_t N>
class SeenPairs {
 public:
  explicit SeenPairs(int most) : most_(static_cast<size_t>(most) + 1), seen_(N * N * most_ * most_) {}
  size_t fresh_of(const Choice<N>& choice) const {
    size_t fresh = 0;
    for (size_t a = 0; a < N; ++a)
      for (size_t b = a + 1; b < N; ++b) fresh += seen_[place(choice, a, b)] == 0 ? 1 : 0;
    return fresh;
  }
  void add(const Choice<N>& choice) {
    for (size_t a = 0; a < N; ++a)
      for (size_t b = a + 1; b < N; ++b) seen_[place(choice, a, b)] = 1;
  }

 private:
  size_t place(const Choice<N>& choice, size_t a, size_t b) const {
    return ((a * N + b) * most_ + static_cast<size_t>(choice[a])) * most_ + static_cast<size_t>(choice[b]);
  }
  size_t most_;
  std::vector<uint8_t> seen_;
};

// Some of the given choices, such that each pair of values that stands in any of them stands in one of these: the next one is always
// that with the most pairs that none before it has.
template <size_t N>
std::vector<Choice<N>> pairwise(const std::vector<Choice<N>>& every) {
  int largest = 0;
  for (const Choice<N>& choice : every) largest = std::max(largest, *std::max_element(choice.begin(), choice.end()));
  std::vector<Choice<N>> chosen;
  SeenPairs<N> seen(largest);
  for (;;) {
    const Choice<N>* best = nullptr;
    size_t most = 0;
    for (const Choice<N>& choice : every) {
      const size_t fresh = seen.fresh_of(choice);
      if (fresh <= most) continue;
      most = fresh;
      best = &choice;
    }
    if (!best) return chosen;
    chosen.push_back(*best);
    seen.add(*best);
  }
}

}  // namespace sfsdp::testing
