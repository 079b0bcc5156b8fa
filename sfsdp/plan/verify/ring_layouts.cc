// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/verify/ring_layouts.h"

#include <algorithm>
#include <array>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::plan {
namespace {

using ir::Op;
using Kind = Layout::Kind;

constexpr Layout kOwn{Kind::Cut, 2};

bool is_of_ring(const Layout& layout) {
  return layout.kind == Kind::Passed || layout.kind == Kind::Terms || layout.kind == Kind::Attended;
}

// The part of the rank so many before, of what is cut so.
Layout part_of(int64_t shift, Layout cut = kOwn) {
  cut.kind = shift == 0 ? Kind::Cut : Kind::Passed;
  cut.shift = shift;
  return cut;
}

//   of: which gradient, 0 to 2; -1: none
Layout one_term(Kind kind, int64_t shift, int64_t term, int of = -1) {
  return {.kind = kind, .dim = 2, .flat = of, .shift = shift, .first = term, .last = term};
}

// What is no longer some of the terms, as all are there, is the part itself.
Layout settled(Layout layout, int64_t ranks) {
  if (layout.first != 0 || layout.last != ranks - 1) return layout;
  layout.first = layout.last = -1;
  layout.flat = -1;
  return part_of(layout.shift, layout);
}

// Terms of both; nullopt: one is missing between them, or in both.
std::optional<Layout> joined_terms(const Layout& a, const Layout& b, int64_t ranks) {
  Layout both = a;
  if (a.last + 1 == b.first)
    both.last = b.last;
  else if (b.last + 1 == a.first)
    both.first = b.first;
  else
    return std::nullopt;
  Layout same = b;
  same.first = a.first;
  same.last = a.last;
  return same == a ? std::optional(settled(both, ranks)) : std::nullopt;
}

RowLayouts passed_on(const Op& op, const Layout& before, int64_t ranks) {
  if (ir::axes_of(op)->size() != 1) return refused("parts are sent round several axes");
  if (before.kind != Kind::Cut && before.kind != Kind::Passed && before.kind != Kind::Terms)
    return refused(concat("permute of what is ", to_text(before)));
  Layout after = before;
  after.shift = (before.shift + op.attr<int64_t>("shift")) % ranks;
  return {{before.kind == Kind::Terms ? after : part_of(after.shift, after)}, ""};
}

// grad, q, k, v, o, lse, documents of backward; q, k, v, documents of forward
RowLayouts ring_attention(const Op& op, const std::vector<Layout>& operands) {
  const bool backward = op.is("sdpa_backward");
  const size_t keys = backward ? 2 : 1, documents = backward ? 6 : 3;
  const auto shift = op.attr<int64_t>("shift");
  for (size_t k = 0; k < operands.size(); ++k) {
    const Layout expected = k >= documents ? Layout() : part_of(k == keys || k == keys + 1 ? shift : 0);
    if (op.operands[k] && operands[k] != expected)
      return refused(concat("operand ", k, " is ", to_text(operands[k]), " where attention with shift=", shift,
                            " has it ", to_text(expected)));
  }
  const Layout attended = one_term(Kind::Attended, 0, shift);
  if (!backward) return {{attended, attended}, ""};
  return {{one_term(Kind::Terms, 0, shift, 0), one_term(Kind::Terms, shift, shift, 1),
           one_term(Kind::Terms, shift, shift, 2)},
          ""};
}

RowLayouts merged(const std::vector<Layout>& operands, int64_t ranks) {
  for (const Layout& operand : operands)
    if (operand.kind != Kind::Attended) return refused(concat("attention that is ", to_text(operand), " is merged"));
  if (operands[0] != operands[1] || operands[2] != operands[3])
    return refused("attention meets the sums of other keys");
  const auto both = joined_terms(operands[0], operands[2], ranks);
  if (!both) return refused(concat("what is ", to_text(operands[0]), " is merged with what is ", to_text(operands[2])));
  return {{*both, *both}, ""};
}

RowLayouts sum_of_terms(const Op& op, const std::vector<Layout>& operands, int64_t ranks) {
  if (operands[0].kind != Kind::Terms || operands[1].kind != Kind::Terms)
    return refused(concat("what is ", to_text(operands[0]), " is added to what is ", to_text(operands[1])));
  if (op.has_attr("alpha")) return refused("a term is added more than once");
  const auto both = joined_terms(operands[0], operands[1], ranks);
  if (!both) return refused(concat("what is ", to_text(operands[0]), " is added to what is ", to_text(operands[1])));
  return {{*both}, ""};
}

// As the part moves that it is, or is terms of.
RowLayouts moved(const Op& op, const Layout& operand, const std::vector<Layout>& named) {
  const Layout cut{Kind::Cut, operand.dim, -1, operand.blocks};
  RowLayouts made = row_layouts(op, {cut}, named);
  for (Layout& result : made.results) {
    if (result.kind != Kind::Cut) return refused(concat(op.opcode, " leaves it ", to_text(result)));
    const Layout place = result;
    result = operand;
    result.dim = place.dim;
    result.blocks = place.blocks;
  }
  return made;
}

// Whether a collective joins or cuts what it sends in this dimension.
bool is_in_dimension(const Op& op, int64_t dim) {
  return std::ranges::any_of(std::array{"dim", "split", "join"}, [&](const char* key) {
    const auto* moved = op.find_attr<int64_t>(key);
    return moved && *moved == dim;
  });
}

}  // namespace

std::optional<RowLayouts> ring_layouts(const Op& op, const std::vector<Layout>& operands,
                                       const std::vector<Layout>& named, bool here, int64_t ranks) {
  if (here && ir::collective_kind(op) == "permute") return passed_on(op, operands[0], ranks);
  if (here && op.is("sdpa", "sdpa_backward") && op.has_attr("shift")) return ring_attention(op, operands);
  if (std::ranges::none_of(operands, is_of_ring)) return std::nullopt;
  if (op.is("sdpa_merge")) return merged(operands, ranks);
  if (op.is("aten.add.Tensor")) return sum_of_terms(op, operands, ranks);
  if (!here && ir::is_collective(op) && operands.size() == 1 && !is_in_dimension(op, operands[0].dim))
    return RowLayouts{{operands[0]}, ""};
  const bool moves = op.is("aten.clone") || ir::has_flag(op, ir::kMoves) || ir::has_flag(op, ir::kReshape) ||
                     ir::has_flag(op, ir::kPermute);
  if (moves && operands.size() == 1) return moved(op, operands[0], named);
  for (const Layout& operand : operands)
    if (is_of_ring(operand)) return refused(concat("what is ", to_text(operand), " is read as if it were all"));
  return std::nullopt;
}

}  // namespace sfsdp::plan
