// SPDX-License-Identifier: BSD-3-Clause
// Rotary embedding (arXiv 2104.09864) of neighbours (2j, 2j + 1), computed in f32 or wider, and its inverse, which is its
// gradient. cos and sin broadcast against half of the last dimension.
#include "sfsdp/ir/canonical/families.h"

namespace sfsdp::ir {
namespace {

struct Pairs {
  Term even, odd;
};

// Of the last dimension, in the wider dtype.
Pairs pairs_of(Body& body, const Term& x) {
  Body::Sizes shape = x.type.shape();
  shape.back() /= 2;
  shape.push_back(2);
  const Term pairs = body.view(body.cast(x, wide(x.type.dtype)), shape);
  return {body.select(pairs, shape.size() - 1, 0), body.select(pairs, shape.size() - 1, 1)};
}

}  // namespace

std::vector<Term> decompose_rope(const CanonicalCall& call, Body& body) {
  const Term &x = call.operands[0], &cos = call.operands[1], &sin = call.operands[2];
  const auto [even, odd] = pairs_of(body, x);
  const Body::Sizes half = even.type.shape();
  Body::Sizes paired = half;
  paired.push_back(2);
  const auto dim = static_cast<int64_t>(half.size());
  const Term first = body.sub(body.mul(even, cos), body.mul(odd, sin));
  const Term second = body.add(body.mul(even, sin), body.mul(odd, cos));
  const Term both = body.list("aten.stack", {first, second}, Type::tensor(first.type.dtype, paired), {{"dim", dim}});
  return {body.cast(body.view(both, x.type.shape()), x.type.dtype)};
}

// As autograd has it: each half of a pair becomes a tensor of both, of which one is 0.
std::vector<Term> decompose_rope_inverse(const CanonicalCall& call, Body& body) {
  const Term &grad = call.operands[0], &cos = call.operands[1], &sin = call.operands[2];
  const auto [even, odd] = pairs_of(body, grad);
  Body::Sizes paired = even.type.shape();
  const auto dim = static_cast<int64_t>(paired.size());
  paired.push_back(2);
  const Term to_even = body.add(body.mul(odd, sin), body.mul(even, cos));
  const Term to_odd = body.add(body.mul(odd, cos), body.mul(body.pointwise("aten.neg", {even}), sin));
  const auto placed = [&](const Term& half, int64_t index) {
    return body.compute("aten.select_backward", {half}, {Type::tensor(half.type.dtype, paired)},
                        {{"dim", dim}, {"index", index}, {"input_sizes", paired}})[0];
  };
  const Term both = body.add(placed(to_odd, 1), placed(to_even, 0));
  return {body.cast(body.view(both, grad.type.shape()), grad.type.dtype)};
}

}  // namespace sfsdp::ir
