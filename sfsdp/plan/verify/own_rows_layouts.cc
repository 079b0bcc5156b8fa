// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/verify/own_rows_layouts.h"

#include <algorithm>
#include <cstdint>

#include "sfsdp/base/check.h"

namespace sfsdp::plan {
namespace {

using ir::Op;
using Kind = Layout::Kind;

bool is_cut_in(const Layout& layout, int64_t dim) {
  return layout.kind == Kind::Cut && layout.part < 0 && layout.dim == dim;
}

// From the first row of the range on, if it is one already.
RowLayouts own_rows_of(const Op& op, const Layout& before) {
  const auto *start = op.find_attr<int64_t>("start"), *length = op.find_attr<int64_t>("length");
  if (!start || !length) return {{}, "rows are taken from a place that differs by rank"};
  Layout range = before;
  if (range.rows < 0) {
    range.rows = op.operands[0]->type().dims[static_cast<size_t>(before.dim)].size;
    range.first = 0;
  }
  range.first += *start;
  range.last = range.first + *length;
  return {{range}, ""};
}

RowLayouts put_together(const Op& op, const std::vector<Layout>& operands) {
  Layout all = operands[0];
  for (size_t k = 0; k < operands.size(); ++k) {
    Layout expected = all;
    expected.first = k == 0 ? 0 : all.last;
    expected.last = expected.first + op.operands[k]->type().dims[static_cast<size_t>(all.dim)].size;
    if (operands[k] != expected)
      return {{},
              concat("operand ", k, " is ", to_text(operands[k]), ", and stands where ", to_text(expected), " does")};
    all.last = expected.last;
  }
  all.first = 0;
  if (all.last < all.rows) return {{all}, ""};
  all.first = all.last = all.rows = -1;
  return {{all}, ""};
}

}  // namespace

std::optional<RowLayouts> own_rows_layouts(const Op& op, const std::vector<Layout>& operands) {
  const bool takes = op.is("narrow");
  if (!takes && !op.is("aten.cat")) return std::nullopt;
  const auto dim = op.attr_or<int64_t>("dim", 0);
  if (takes) return is_cut_in(operands[0], dim) ? std::optional(own_rows_of(op, operands[0])) : std::nullopt;
  const auto is_summand = [](const Layout& layout) { return layout == Layout{Kind::Summand}; };
  if (std::ranges::all_of(operands, is_summand)) return RowLayouts{{{Kind::Summand}}, ""};
  const bool is_range = is_cut_in(operands[0], dim) && operands[0].rows >= 0;
  return is_range ? std::optional(put_together(op, operands)) : std::nullopt;
}

OwnRows own_rows_of(const Op& op, const std::vector<Layout>& operands) {
  OwnRows found;
  for (const Layout& layout : operands)
    if (layout.rows >= 0) found.range = layout;
  if (!found.range) return found;
  for (size_t k = 0; k < operands.size(); ++k) {
    const Layout& layout = operands[k];
    if (!op.operands[k] || layout.kind == Kind::Whole || layout == with_range(layout, *found.range)) continue;
    found.wrong = concat("operand ", k, " is ", to_text(layout), " where another one is ", to_text(*found.range));
    return found;
  }
  return found;
}

Layout without_range(const Layout& layout) { return layout.rows < 0 ? layout : Layout{Kind::Cut, layout.dim, -1, 1}; }

Layout with_range(const Layout& layout, const Layout& range) {
  if (layout.kind != Kind::Cut) return layout;
  Layout made = range;
  made.dim = layout.dim;
  return made;
}

}  // namespace sfsdp::plan
