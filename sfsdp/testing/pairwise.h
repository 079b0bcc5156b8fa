// SPDX-License-Identifier: BSD-3-Clause
// Choices among several options each, such that of any two options all pairs of values are met: few programs that cover what
// belongs together.
#pragma once

#include <array>
#include <cstdlib>
#include <set>
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

// Choices in which each pair of values stands, the next one always that with the most pairs that none before it has. With
// SFSDP_EVERY_MESH=1 in the environment all there are (docs/benchmarks.md).
template <size_t N>
std::vector<Choice<N>> pairwise(const Choice<N>& counts) {
  const std::vector<Choice<N>> every = all_choices(counts);
  if (std::getenv("SFSDP_EVERY_MESH")) return every;
  std::vector<Choice<N>> chosen;
  std::set<Pair> seen;
  for (;;) {
    const Choice<N>* best = nullptr;
    size_t most = 0;
    for (const Choice<N>& choice : every) {
      size_t fresh = 0;
      for (const Pair& pair : pairs_of(choice)) fresh += seen.contains(pair) ? 0 : 1;
      if (fresh <= most) continue;
      most = fresh;
      best = &choice;
    }
    if (!best) return chosen;
    chosen.push_back(*best);
    for (const Pair& pair : pairs_of(*best)) seen.insert(pair);
  }
}

}  // namespace sfsdp::testing
