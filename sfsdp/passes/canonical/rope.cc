// SPDX-License-Identifier: BSD-3-Clause
// Rotary embedding of neighbours or halves, in real or complex numbers, and autograd's gradient of it. Left alone: a head of
// which a part is turned (the part alone is found where it is a tensor of its own), tables that learn, angles per token pair.
#include <optional>

#include "sfsdp/passes/canonical/proposals.h"
#include "sfsdp/passes/canonical/walk.h"

namespace sfsdp::passes {
namespace {

using ir::Op, ir::Value;

// `value` is part `index` of `whole`: of neighbours along its last dimension, or one of its halves.
struct Part {
  Value* whole = nullptr;
  int64_t index = 0;
  bool is_half = false;
};

bool is_last(int64_t dim, int64_t rank) { return dim == -1 || dim == rank - 1; }

std::optional<Part> part_by_select(const Op& select) {
  Value* pairs = select.operands[0];
  const auto& dims = pairs->type().dims;
  const auto rank = static_cast<int64_t>(dims.size());
  if (rank < 2 || dims.back().size != 2 || !is_last(select.attr<int64_t>("dim"), rank)) return std::nullopt;
  Value* whole = before_reshape(pairs);
  if (whole == pairs || whole->type().dims.size() + 1 != dims.size()) return std::nullopt;
  return Part{whole, select.attr<int64_t>("index"), false};
}

std::optional<Part> part_of(const Value* value) {
  if (!value) return std::nullopt;
  const Op& op = *value->producer();
  if (op.is("aten.select.int")) return part_by_select(op);
  if (!op.is("aten.slice.Tensor", "aten.split.Tensor")) return std::nullopt;
  Value* whole = op.operands[0];
  const auto rank = static_cast<int64_t>(whole->type().dims.size());
  const int64_t size = rank == 0 ? 0 : whole->type().dims.back().size;
  if (!is_last(op.attr_or<int64_t>("dim", 0), rank) || 2 * value->type().dims.back().size != size) return std::nullopt;
  if (op.is("aten.split.Tensor")) return Part{whole, value->result_index(), true};
  const int64_t start = op.attr_or<int64_t>("start", 0);
  if (op.attr_or<int64_t>("step", 1) == 2) return Part{whole, start, false};
  return Part{whole, start == 0 ? 0 : 1, true};
}

// A part times an angle.
struct Turned {
  Part part;
  Value* angle = nullptr;
};

std::optional<Turned> turned(const Value* product, int64_t index) {
  const Op* mul = made_by(product, "aten.mul.Tensor");
  if (!mul) return std::nullopt;
  for (size_t i : {0u, 1u})
    if (const auto part = part_of(mul->operands[i]); part && part->index == index)
      return Turned{*part, mul->operands[1 - i]};
  return std::nullopt;
}

//   whole: what the arithmetic reads, perhaps a wider copy
Proposal proposed(const char* opcode, Value* whole, std::vector<Value*> tables, bool halves, bool sliced = false) {
  Proposal p{opcode, {before_widening(whole)}, {}};
  p.operands.insert(p.operands.end(), tables.begin(), tables.end());
  if (halves) p.attrs["halves"] = true;
  if (sliced) p.attrs["sliced"] = true;
  const ir::DType dtype = whole->type().dtype;
  if (ir::is_half(dtype)) p.attrs["in_dtype"] = true;
  return p;
}

// even · cos - odd · sin first, then even · sin + odd · cos.
std::vector<Proposal> propose_pairs(const Op& join) {
  const Op* first = join.operands.size() == 2 ? made_by(join.operands[0], "aten.sub.Tensor") : nullptr;
  if (!first) return {};
  const auto even = turned(first->operands[0], 0), odd = turned(first->operands[1], 1);
  if (!even || !odd || even->part.is_half != join.is("aten.cat")) return {};
  return {proposed("rope", even->part.whole, {even->angle, odd->angle}, even->part.is_half)};
}

// What a product and another one have in common, and what each multiplies it with.
struct Common {
  Value *value, *with_first, *with_second;
};
std::vector<Common> common_factors(const Op& first, const Op& second) {
  std::vector<Common> found;
  for (size_t i : {0u, 1u})
    for (size_t k : {0u, 1u})
      if (first.operands[i] == second.operands[k])
        found.push_back({first.operands[i], first.operands[1 - i], second.operands[1 - k]});
  return found;
}

// x · cos + cat(-second half, first half) · sin
std::vector<Proposal> propose_rotate_half(const Op& sum) {
  std::vector<Proposal> proposals;
  for (size_t i : {0u, 1u}) {
    const Op *rotated = made_by(sum.operands[i], "aten.mul.Tensor"), *direct = nullptr;
    if (rotated) direct = made_by(sum.operands[1 - i], "aten.mul.Tensor");
    if (!direct) continue;
    for (size_t k : {0u, 1u}) {
      const Op* join = made_by(rotated->operands[k], "aten.cat");
      const Op* minus = join && join->operands.size() == 2 ? made_by(join->operands[0], "aten.neg") : nullptr;
      const auto part = minus ? part_of(minus->operands[0]) : std::nullopt;
      if (!part) continue;
      Value* sin = rotated->operands[1 - k];
      for (Value* whole : direct->operands)
        if (whole->type().shape() == part->whole->type().shape())
          proposals.push_back(proposed("rope", whole, {other_operand(*direct, whole), sin}, true));
    }
  }
  return proposals;
}

// g · cos, and the halves of g · sin back in their places: with one cat, or each by itself.
std::vector<Proposal> propose_rotate_half_back(const Op& sum) {
  std::vector<Proposal> proposals;
  const auto propose = [&](const Op* direct, const Value* minus_first, bool sliced, bool direct_last) {
    const Op* minus = direct ? made_by(minus_first, "aten.neg") : nullptr;
    const auto part = minus ? part_of(minus->operands[0]) : std::nullopt;
    const Op* of_sin = part ? made_by(part->whole, "aten.mul.Tensor") : nullptr;
    if (!of_sin) return;
    for (const Common& c : common_factors(*direct, *of_sin)) {
      proposals.push_back(proposed("rope_inverse", c.value, {c.with_first, c.with_second}, true, sliced));
      if (direct_last) proposals.back().attrs["direct_last"] = true;
    }
  };
  for (size_t i : {0u, 1u}) {
    const Op* join = made_by(sum.operands[i], "aten.cat");
    if (join && join->operands.size() == 2)
      propose(made_by(sum.operands[1 - i], "aten.mul.Tensor"), join->operands[1], false, false);
    const Op* before = made_by(sum.operands[1 - i], "aten.add.Tensor");
    if (!before) continue;
    if (const Op* place = made_by(sum.operands[i], "aten.slice_backward"))
      for (const Value* direct : before->operands)
        propose(made_by(direct, "aten.mul.Tensor"), place->operands[0], true, false);
    if (const Op* direct = made_by(sum.operands[i], "aten.mul.Tensor"))
      for (const Value* part : before->operands)
        if (const Op* place = made_by(part, "aten.slice_backward")) propose(direct, place->operands[0], true, true);
  }
  return proposals;
}

// Parts of the gradient, each put in its place by itself.
std::vector<Proposal> propose_placed(const Op& sum) {
  std::vector<Proposal> proposals;
  for (const Value* part : sum.operands) {
    const Op *by_select = made_by(part, "aten.select_backward"), *by_slice = made_by(part, "aten.slice_backward");
    const Op* place = by_select ? by_select : by_slice;
    const Op* to_odd = place ? made_by(place->operands[0], "aten.add.Tensor") : nullptr;
    if (!to_odd) continue;
    for (size_t i : {0u, 1u}) {
      const auto cos = turned(to_odd->operands[i], 1);
      const Op* minus = made_by(to_odd->operands[1 - i], "aten.mul.Tensor");
      if (!cos || !minus) continue;
      const bool halves = by_slice && by_slice->attr_or<int64_t>("step", 1) == 1;
      for (size_t k : {0u, 1u})
        if (made_by(minus->operands[k], "aten.neg"))
          proposals.push_back(proposed("rope_inverse", cos->part.whole, {cos->angle, minus->operands[1 - k]}, halves,
                                       by_slice != nullptr));
    }
  }
  return proposals;
}

// Both halves of the gradient in one cat.
std::vector<Proposal> propose_joined(const Op& join) {
  const Op* to_even = join.operands.size() == 2 ? made_by(join.operands[0], "aten.add.Tensor") : nullptr;
  if (!to_even) return {};
  for (size_t i : {0u, 1u}) {
    const auto cos = turned(to_even->operands[i], 0), sin = turned(to_even->operands[1 - i], 1);
    if (cos && sin) return {proposed("rope_inverse", cos->part.whole, {cos->angle, sin->angle}, true)};
  }
  return {};
}

// The pairs of x that a product of complex numbers turns.
std::vector<Proposal> propose_complex(const Op& product) {
  std::vector<Proposal> proposals;
  for (size_t i : {0u, 1u}) {
    const Op* pairs = made_by(product.operands[i], "aten.view_as_complex");
    if (!pairs) continue;
    Value *whole = before_reshape(pairs->operands[0]), *table = product.operands[1 - i];
    // The product is laid out by LibTorch, rope as x is: the same where both are row-major.
    if (!whole->type().strides.empty() || !product.result()->type().strides.empty()) continue;
    const Op* copy = made_by(table, "aten.clone");
    if (const Op* conjugate = copy ? made_by(copy->operands[0], "aten._conj") : nullptr)
      proposals.push_back(proposed("rope_inverse", whole, {conjugate->operands[0]}, false));
    proposals.push_back(proposed("rope", whole, {table}, false));
  }
  return proposals;
}

}  // namespace

std::vector<Proposal> propose_rope(Op* op, const OpFinder&) {
  if (op->is("aten.mul.Tensor") && op->result()->type().dtype == ir::DType::c64) return propose_complex(*op);
  if (op->is("aten.stack", "aten.cat")) return propose_pairs(*op);
  return op->is("aten.add.Tensor") ? propose_rotate_half(*op) : std::vector<Proposal>{};
}

std::vector<Proposal> propose_rope_inverse(Op* op, const OpFinder&) {
  if (op->section != ir::Section::Bwd) return {};
  if (op->is("aten.cat")) return propose_joined(*op);
  if (!op->is("aten.add.Tensor")) return {};
  std::vector<Proposal> proposals = propose_rotate_half_back(*op);
  for (Proposal& p : propose_placed(*op)) proposals.push_back(std::move(p));
  return proposals;
}

}  // namespace sfsdp::passes
