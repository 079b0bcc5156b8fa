// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/verify/vocabulary_layouts.h"

#include "sfsdp/base/check.h"

namespace sfsdp::plan {
namespace {

using Kind = Layout::Kind;

struct Expected {
  int operand;  // the one that is cut; -1: none
  int64_t dim;
  Layout result;
};

std::optional<Expected> expected_of(const ir::Op& op) {
  if (op.is("embedding")) return Expected{0, 0, {Kind::Summand}};
  if (op.is("embedding_backward")) return Expected{-1, 0, {Kind::Cut, 0}};
  if (op.is("cross_entropy_parts")) return Expected{0, 1, {Kind::Cut, 0}};
  if (op.is("cross_entropy_backward")) return Expected{1, 1, {Kind::Cut, 1}};
  return std::nullopt;
}

}  // namespace

std::optional<RowLayouts> vocabulary_layouts(const ir::Op& op, const std::vector<Layout>& operands) {
  const auto expected = expected_of(op);
  if (!expected) return std::nullopt;
  for (size_t k = 0; k < operands.size(); ++k) {
    const Layout wanted = static_cast<int>(k) == expected->operand ? Layout{Kind::Cut, expected->dim} : Layout();
    if (operands[k] != wanted)
      return RowLayouts{{}, concat("operand ", k, " has to be ", to_text(wanted), ", and is ", to_text(operands[k]))};
  }
  return RowLayouts{std::vector<Layout>(op.results().size(), expected->result), ""};
}

}  // namespace sfsdp::plan
