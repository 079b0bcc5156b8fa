// SPDX-License-Identifier: BSD-3-Clause
// Dropout (JMLR 15, 2014) as torch::dropout computes it. The mask is a function of a counter, so it is drawn again in backward;
// LibTorch keeps it, scaled, in the place of the counter's state.
#include "sfsdp/ir/canonical/families.h"

namespace sfsdp::ir {

std::vector<Term> decompose_dropout(const CanonicalCall& call, Body& body) {
  const Term& x = call.operands[0];
  Emitter::Attributes draw = call.attrs;
  const Attr keep = draw.at("keep");
  draw.erase("keep");
  draw["p"] = keep;
  // Contiguous, whatever the strides of x.
  const Term mask = body.compute("aten.bernoulli.p", {body.pointwise("aten.empty_like", {x})},
                                 {Type::tensor(x.type.dtype, x.type.shape())}, draw)[0];
  const Term scaled = body.pointwise("aten.div.Scalar", {mask}, {{"other", keep}});
  return {body.mul(x, scaled), scaled};
}

// grad, and what forward left
std::vector<Term> decompose_dropout_backward(const CanonicalCall& call, Body& body) {
  return {body.mul(call.operands[0], call.operands[1])};
}

Type dropout_state(const CanonicalCall&) { return Type::tensor(DType::i64, {2}); }

}  // namespace sfsdp::ir
