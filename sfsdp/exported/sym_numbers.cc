// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exported/sym_numbers.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/exported/same_graphs.h"

namespace sfsdp::exported {
namespace {

bool is_number(const Polynomial& polynomial) {
  if (polynomial.empty()) return true;
  return polynomial.size() == 1 && std::ranges::all_of(polynomial.begin()->first, [](int power) { return power == 0; });
}
int64_t number_of(const Polynomial& polynomial) { return polynomial.empty() ? 0 : polynomial.begin()->second; }

std::string symbol_text(size_t symbol) {
  return concat("Symbol('", SymNumbers::symbol_name(symbol), "', positive=True, integer=True)");
}

// sympy's own form, in which torch.export writes expressions.
std::string call(const char* name, const std::vector<std::string>& parts) {
  return parts.size() == 1 ? parts.front() : concat(name, "(", join(parts, ", "), ")");
}

std::string text_of(const Polynomial& polynomial) {
  std::vector<std::string> terms;
  for (const auto& [powers, factor] : polynomial) {
    std::vector<std::string> parts;
    if (factor != 1 || is_number({{powers, factor}})) parts.push_back(concat("Integer(", factor, ")"));
    for (size_t s = 0; s < powers.size(); ++s) {
      if (powers[s] == 1) parts.push_back(symbol_text(s));
      if (powers[s] > 1) parts.push_back(concat("Pow(", symbol_text(s), ", Integer(", powers[s], "))"));
    }
    terms.push_back(call("Mul", parts));
  }
  return call("Add", terms);
}

}  // namespace

Polynomial SymNumbers::find(std::span<const int64_t> values, const std::string& what) const {
  if (auto found = sizes_.find(values)) return *std::move(found);
  std::vector<std::string> seen;
  for (size_t p = 0; p < values.size(); ++p) seen.push_back(concat(values[p], " at ", point_text(sizes_, p)));
  throw UserError(
      concat(what, " is ", join(seen, "; "),
             "\n  expected a sum of products of the sizes with whole factors; let a size that it depends on be"
             " fixed in the archive"));
}

SymInt SymNumbers::expression(std::span<const int64_t> values, const std::string& what) const {
  const Polynomial found = find(values, what);
  return {values[0], is_number(found) ? "" : text_of(found)};
}

std::variant<int64_t, ValueArgument> SymNumbers::argument(std::span<const int64_t> values, const std::string& what) {
  const Polynomial found = find(values, what);
  if (is_number(found)) return number_of(found);
  return ValueArgument{slot_of(found)};
}

Slot SymNumbers::define(const std::string& word, const Polynomial& value) {
  const auto slot = static_cast<Slot>(graph_.values.size());
  graph_.values.push_back({name_(word), std::nullopt, {value_at(value, sizes_.points()[0]), text_of(value)}});
  known_.emplace(value, slot);
  return slot;
}

// The first dimension of an input that is the size.
Slot SymNumbers::size_of_input(size_t symbol) {
  const std::string text = symbol_text(symbol);
  for (const Slot input : graph_.inputs) {
    const auto& meta = graph_.values[static_cast<size_t>(input)].tensor;
    for (size_t d = 0; meta && d < meta->sizes.size(); ++d) {
      if (meta->sizes[d].expr != text) continue;
      Powers powers(sizes_.symbols().size(), 0);
      powers[symbol] = 1;
      const Slot slot = define("sym_size", {{powers, 1}});
      graph_.nodes.push_back({"torch.ops.aten.sym_size.int",
                              {{"self", ValueArgument{input}}, {"dim", static_cast<int64_t>(d)}},
                              {ValueArgument{slot}},
                              "",
                              ""});
      return slot;
    }
  }
  throw UserError(concat("no input has a dimension of size ", sizes_.symbols()[symbol].name,
                         "\n  expected one for each size that may vary"));
}

Slot SymNumbers::compute(const char* target, Slot a, std::variant<int64_t, Slot> b, const Polynomial& result) {
  if (const auto known = known_.find(result); known != known_.end()) return known->second;
  const Slot slot = define(std::string(target).substr(std::string_view("_operator.").size()), result);
  Argument second = ValueArgument{};
  if (const auto* number = std::get_if<int64_t>(&b))
    second = *number;
  else
    second = ValueArgument{std::get<Slot>(b)};
  graph_.nodes.push_back({target, {{"a", ValueArgument{a}}, {"b", second}}, {ValueArgument{slot}}, "", ""});
  return slot;
}

// Sizes, then their products, then the sum of those, then a number.
Slot SymNumbers::slot_of(const Polynomial& polynomial) {
  std::optional<Slot> sum;
  Polynomial added;
  int64_t number = 0;
  for (const auto& [powers, factor] : polynomial) {
    if (is_number({{powers, factor}})) {
      number = factor;
      continue;
    }
    std::optional<Slot> product;
    Powers done(powers.size(), 0);
    for (size_t s = 0; s < powers.size(); ++s)
      for (int p = 0; p < powers[s]; ++p) {
        Powers one(powers.size(), 0);
        one[s] = 1;
        ++done[s];
        const auto known = known_.find({{one, 1}});
        const Slot size = known != known_.end() ? known->second : size_of_input(s);
        product = product ? compute("_operator.mul", *product, size, {{done, 1}}) : size;
      }
    if (factor != 1) product = compute("_operator.mul", *product, factor, {{powers, factor}});
    added.emplace(powers, factor);
    sum = sum ? compute("_operator.add", *sum, *product, added) : *product;
  }
  SFSDP_CHECK(sum.has_value(), "a number is no sum");
  if (number == 0) return *sum;
  return compute("_operator.add", *sum, number, polynomial);
}

}  // namespace sfsdp::exported
