// SPDX-License-Identifier: BSD-3-Clause
// Rotary embedding of neighbours, written with real numbers, and autograd's gradient of it. Left alone: halves of a head
// turned against each other, products of complex numbers.
#include <optional>

#include "sfsdp/passes/canonical/proposals.h"
#include "sfsdp/passes/canonical/walk.h"

namespace sfsdp::passes {
namespace {

using ir::Op, ir::Value;

// `value` is element `index` of the pairs that the last dimension of `whole` is made of.
struct Half {
  Value* whole = nullptr;
  int64_t index = 0;
};

std::optional<Half> half_of(const Value* value) {
  const Op* select = made_by(value, "aten.select.int");
  if (!select) return std::nullopt;
  Value* pairs = select->operands[0];
  const auto& dims = pairs->type().dims;
  const auto rank = static_cast<int64_t>(dims.size());
  const auto dim = select->attr<int64_t>("dim");
  if (rank < 2 || dims.back().size != 2 || (dim != -1 && dim != rank - 1)) return std::nullopt;
  const Op& view = *pairs->producer();
  if (view.operands.empty()) return std::nullopt;
  Value* whole = before_reshape(pairs);
  if (whole == pairs || whole->type().dims.size() + 1 != dims.size()) return std::nullopt;
  return Half{before_widening(whole), select->attr<int64_t>("index")};
}

// a · b with the half `index` as a or b.
struct Turned {
  Value *whole = nullptr, *angle = nullptr;
};

std::optional<Turned> turned(const Value* product, int64_t index) {
  const Op* mul = made_by(product, "aten.mul.Tensor");
  if (!mul) return std::nullopt;
  for (size_t i : {0u, 1u})
    if (const auto half = half_of(mul->operands[i]); half && half->index == index)
      return Turned{half->whole, mul->operands[1 - i]};
  return std::nullopt;
}

}  // namespace

std::vector<Proposal> propose_rope(Op* op, const OpFinder&) {
  if (!op->is("aten.stack") || op->operands.size() != 2) return {};
  const Op* first = made_by(op->operands[0], "aten.sub.Tensor");
  if (!first) return {};
  const auto even = turned(first->operands[0], 0), odd = turned(first->operands[1], 1);
  if (!even || !odd) return {};
  return {{"rope", {even->whole, even->angle, odd->angle}, {}}};
}

std::vector<Proposal> propose_rope_inverse(Op* op, const OpFinder&) {
  std::vector<Proposal> proposals;
  if (op->section != ir::Section::Bwd || !op->is("aten.add.Tensor")) return proposals;
  for (const Value* part : op->operands) {
    const Op* placed = made_by(part, "aten.select_backward");
    const Op* to_odd = placed ? made_by(placed->operands[0], "aten.add.Tensor") : nullptr;
    if (!to_odd || placed->attr_or<int64_t>("index", 0) != 1) continue;
    for (size_t i : {0u, 1u}) {
      const auto cos = turned(to_odd->operands[i], 1);
      const Op* minus = made_by(to_odd->operands[1 - i], "aten.mul.Tensor");
      if (!cos || !minus) continue;
      for (size_t k : {0u, 1u})
        if (made_by(minus->operands[k], "aten.neg"))
          proposals.push_back({"rope_inverse", {cos->whole, cos->angle, minus->operands[1 - k]}, {}});
    }
  }
  return proposals;
}

}  // namespace sfsdp::passes
