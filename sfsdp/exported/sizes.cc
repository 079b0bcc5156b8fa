// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exported/sizes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::exported {
namespace {

// No size of 1: strides of such a dimension are of no account, so that a capture takes other views there; it runs all the same.
constexpr int64_t kLeast = 2;
constexpr int kMaxPower = 2, kMaxDegree = 3;
// Steps above kLeast, by point: sizes are primes of no simple relation, so that no product of them is a sum of others.
constexpr int64_t kSteps[][Sizes::kPoints - 1] = {{3, 29, 11, 57}, {5, 17, 45, 27}, {9, 21, 15, 87}, {1, 39, 69, 35}};
constexpr int64_t kLarge[] = {251, 2053, 521, 131};  // where there is no largest size

std::vector<int64_t> sizes_of(const Symbol& symbol, size_t place) {
  const size_t row = place % std::size(kSteps);
  const int64_t low = std::max(symbol.min, kLeast),
                count = symbol.max ? *symbol.max - low + 1 : std::numeric_limits<int64_t>::max();
  if (count < static_cast<int64_t>(Sizes::kPoints))
    throw UserError(concat("size ", symbol.name, " may vary from ", symbol.min, " to ", *symbol.max,
                           "\n  expected at least ", Sizes::kPoints,
                           " sizes above 1; a range of fewer is to be an archive for each"));
  std::vector<int64_t> sizes;
  for (const int64_t step : kSteps[row]) {
    int64_t size = low + step % (count - 1);
    while (std::ranges::find(sizes, size) != sizes.end()) size = low + (size - low + 1) % (count - 1);
    sizes.push_back(size);
  }
  sizes.push_back(symbol.max ? *symbol.max : low - kLeast + kLarge[row]);
  return sizes;
}

// All products of up to kMaxDegree sizes but the empty one, those of fewer first.
std::vector<Powers> products_of(size_t symbols) {
  std::vector<Powers> products, last = {Powers(symbols, 0)};
  for (int degree = 1; degree <= kMaxDegree; ++degree) {
    std::vector<Powers> next;
    for (const Powers& powers : last)
      for (size_t s = 0; s < symbols; ++s) {
        Powers more = powers;
        if (++more[s] <= kMaxPower && std::ranges::find(next, more) == next.end()) next.push_back(std::move(more));
      }
    products.insert(products.end(), next.begin(), next.end());
    last = std::move(next);
  }
  return products;
}

// A factor that is a whole number; whether it is the right one is checked with whole numbers.
std::optional<int64_t> whole(long double factor) {
  const long double rounded = std::round(factor);
  if (!(std::abs(rounded) < 0x1p62L)) return std::nullopt;
  return static_cast<int64_t>(rounded);
}

// v = a·x + b·y + c at all points; y may be empty, then b is 0.
struct Fit {
  int64_t a = 0, b = 0, c = 0;
};
std::optional<Fit> fit(std::span<const int64_t> v, std::span<const int64_t> x, std::span<const int64_t> y) {
  const auto step = [](std::span<const int64_t> of, size_t p) { return static_cast<long double>(of[p] - of[0]); };
  Fit found;
  if (y.empty()) {
    if (x[1] == x[0]) return std::nullopt;
    const auto a = whole(step(v, 1) / step(x, 1));
    if (!a) return std::nullopt;
    found.a = *a;
  } else {
    const long double determinant = step(x, 1) * step(y, 2) - step(x, 2) * step(y, 1);
    if (determinant == 0) return std::nullopt;
    const auto a = whole((step(v, 1) * step(y, 2) - step(v, 2) * step(y, 1)) / determinant);
    const auto b = whole((step(x, 1) * step(v, 2) - step(x, 2) * step(v, 1)) / determinant);
    if (!a || !b) return std::nullopt;
    found.a = *a, found.b = *b;
  }
  // In unsigned numbers: what wraps is no fit.
  const auto sum = [&](size_t p) {
    return static_cast<uint64_t>(found.a) * static_cast<uint64_t>(x[p]) +
           (y.empty() ? 0 : static_cast<uint64_t>(found.b) * static_cast<uint64_t>(y[p]));
  };
  const uint64_t c = static_cast<uint64_t>(v[0]) - sum(0);
  for (size_t p = 0; p < v.size(); ++p)
    if (sum(p) + c != static_cast<uint64_t>(v[p])) return std::nullopt;
  found.c = static_cast<int64_t>(c);
  return found;
}

}  // namespace

int64_t value_at(const Polynomial& polynomial, std::span<const int64_t> sizes) {
  int64_t sum = 0;
  for (const auto& [powers, factor] : polynomial) {
    int64_t product = factor;
    for (size_t s = 0; s < powers.size(); ++s)
      for (int p = 0; p < powers[s]; ++p) product *= sizes[s];
    sum += product;
  }
  return sum;
}

Sizes::Sizes(std::vector<Symbol> symbols) : symbols_(std::move(symbols)), products_(products_of(symbols_.size())) {
  std::vector<std::vector<int64_t>> of_symbol;
  for (size_t s = 0; s < symbols_.size(); ++s) of_symbol.push_back(sizes_of(symbols_[s], s));
  for (size_t p = 0; p < kPoints; ++p) {
    std::vector<int64_t> point;
    for (const auto& sizes : of_symbol) point.push_back(sizes[p]);
    points_.push_back(std::move(point));
  }
  for (const Powers& powers : products_) {
    std::vector<int64_t> values;
    for (const auto& point : points_) values.push_back(value_at({{powers, 1}}, point));
    at_points_.push_back(std::move(values));
  }
}

std::optional<Polynomial> Sizes::find(std::span<const int64_t> values) const {
  SFSDP_CHECK(values.size() == kPoints, values.size());
  const Powers one(symbols_.size(), 0);
  const auto with_number = [&](Polynomial terms, int64_t number) {
    if (number != 0) terms[one] = number;
    return terms;
  };
  if (std::ranges::all_of(values, [&](int64_t v) { return v == values[0]; })) return with_number({}, values[0]);
  std::optional<Polynomial> with_sum;
  for (size_t i = 0; i < products_.size(); ++i)
    if (const auto found = fit(values, at_points_[i], {})) {
      const Polynomial terms = with_number({{products_[i], found->a}}, found->c);
      if (found->c == 0) return terms;  // a product alone is simpler than one with a number
      if (!with_sum) with_sum = terms;
    }
  if (with_sum) return with_sum;
  for (size_t i = 0; i < products_.size(); ++i)
    for (size_t j = i + 1; j < products_.size(); ++j)
      if (const auto found = fit(values, at_points_[i], at_points_[j]); found && found->a != 0 && found->b != 0)
        return with_number({{products_[i], found->a}, {products_[j], found->b}}, found->c);
  return std::nullopt;
}

}  // namespace sfsdp::exported
