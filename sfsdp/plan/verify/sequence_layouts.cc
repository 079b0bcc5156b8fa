// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/verify/sequence_layouts.h"

#include <cstdint>

#include "sfsdp/base/check.h"

namespace sfsdp::plan {
namespace {

using ir::Op;
using Kind = Layout::Kind;

constexpr Layout kWhole, kQueries{Kind::Cut, 2};

RowLayouts attention(const Op& op, const std::vector<Layout>& operands) {
  const bool backward = op.is("sdpa_backward");
  const size_t keys = backward ? 2 : 1;
  for (size_t k = 0; k < operands.size(); ++k) {
    const bool is_whole = k == keys || k == keys + 1 || k >= (backward ? 6U : 3U);  // keys, values, documents
    if (op.operands[k] && operands[k] != (is_whole ? kWhole : kQueries))
      return {{},
              concat("operand ", k, " is ", to_text(operands[k]), " where attention of a part of the queries has it ",
                     is_whole ? "whole" : "cut in dimension 2")};
  }
  if (!backward) return {{kQueries, kQueries}, ""};
  return {{kQueries, {Kind::Summand}, {Kind::Summand}}, ""};
}

// A row of the loss is made of a row of logits, and the sum of those that a rank has is its summand.
RowLayouts loss(const Layout& logits, const Layout& targets, int64_t rows_at) {
  const Layout rows{Kind::Cut, 0, -1, logits.blocks};
  if (logits.dim != rows_at) return {{}, "logits are cut in their classes where a row is read whole"};
  if (targets != rows) return {{}, concat("the targets are ", to_text(targets), " where logits are cut in their rows")};
  return {{{Kind::Summand}, {Kind::Summand}, rows}, ""};
}

}  // namespace

std::optional<RowLayouts> sequence_layouts(const Op& op, const std::vector<Layout>& operands, bool here) {
  constexpr int64_t kSum = 2;
  if (here && op.is("sdpa", "sdpa_backward")) return attention(op, operands);
  if (!here && op.is("embedding_backward") && !op.attr_or("scale_grad_by_freq", false) &&
      operands[0].kind == Kind::Cut && operands[0].dim < std::ssize(op.operands[1]->type().dims)) {
    if (operands[1] != operands[0])
      return RowLayouts{{},
                        concat("the ids are ", to_text(operands[1]), " where gradients are ", to_text(operands[0]))};
    return RowLayouts{{{Kind::Summand}}, ""};
  }
  const bool is_loss = op.is("cross_entropy", "cross_entropy_of_parts");
  if (!is_loss || operands[0].kind != Kind::Cut || op.attr_or("reduction", int64_t{1}) != kSum) return std::nullopt;
  return loss(operands[0], operands[1], op.is("cross_entropy") ? 0 : 1);
}

}  // namespace sfsdp::plan
