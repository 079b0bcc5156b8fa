// SPDX-License-Identifier: BSD-3-Clause
// How a number of a graph depends on the sizes that may vary: found from what it was at several sizes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace sfsdp::exported {

// A size that may vary: "batch", from min to max of it.
struct Symbol {
  std::string name;
  int64_t min = 1;
  std::optional<int64_t> max;  // none: any
};

// The powers of the symbols in a product: {1, 2} is s0 * s1 * s1; all 0: the number 1.
using Powers = std::vector<int>;
// A sum of products: {{0, 0} -> 3, {1, 1} -> 2} is 3 + 2 * s0 * s1. Without terms of factor 0.
using Polynomial = std::map<Powers, int64_t>;
//   sizes: one for each symbol
int64_t value_at(const Polynomial& polynomial, std::span<const int64_t> sizes);

// Points to look at a graph from, and what a number is that had these values there.
class Sizes {
 public:
  static constexpr size_t kPoints = 5;

  //   throws: UserError for a symbol whose range holds too few numbers, which should not be one
  explicit Sizes(std::vector<Symbol> symbols);

  const std::vector<Symbol>& symbols() const { return symbols_; }
  // kPoints of them; each has a size for each symbol. The last one has the largest sizes, or large ones.
  const std::vector<std::vector<int64_t>>& points() const { return points_; }

  // The simplest polynomial with whole factors that has these values at the points: a number, a product, or a sum of up to
  // two products and a number. As many points as five make another one that fits by chance all but impossible.
  //   values: one for each point
  //   returns: none where there is none, as for half of a size
  std::optional<Polynomial> find(std::span<const int64_t> values) const;

 private:
  std::vector<Symbol> symbols_;
  std::vector<std::vector<int64_t>> points_;
  std::vector<Powers> products_;                 // that may occur, simple ones first
  std::vector<std::vector<int64_t>> at_points_;  // the value of each product at each point
};

}  // namespace sfsdp::exported
