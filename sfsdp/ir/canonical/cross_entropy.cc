// SPDX-License-Identifier: BSD-3-Clause
// Cross entropy of rows of logits with class numbers, in f32 or wider. The softmax is made again in backward, so that the
// logits are all that is kept.
#include "sfsdp/ir/canonical/families.h"

namespace sfsdp::ir {
namespace {

Term log_softmax(Body& body, const Term& logits) {
  const Term wider = body.cast(logits, wide(logits.type.dtype));
  return body.compute("aten._log_softmax", {wider}, {Type::tensor(wider.type.dtype, wider.type.shape())},
                      {{"dim", int64_t{1}}, {"half_to_float", false}})[0];
}

}  // namespace

// logits [n, classes], targets [n]
std::vector<Term> decompose_cross_entropy(const CanonicalCall& call, Body& body) {
  const Term log_p = log_softmax(body, call.operands[0]);
  const auto reduction = call.attrs.find("reduction");
  const bool each = reduction != call.attrs.end() && std::get<int64_t>(reduction->second) == 0;
  const Type loss = Type::tensor(log_p.type.dtype, each ? call.operands[1].type.shape() : Body::Sizes());
  return body.compute("aten.nll_loss_forward", {log_p, call.operands[1], {}},
                      {loss, Type::tensor(log_p.type.dtype, {})}, call.attrs);
}

// grad of the loss, logits, targets, count
std::vector<Term> decompose_cross_entropy_backward(const CanonicalCall& call, Body& body) {
  const Term &grad = call.operands[0], &logits = call.operands[1], &targets = call.operands[2];
  const Term log_p = log_softmax(body, logits);
  const Type type = Type::tensor(log_p.type.dtype, log_p.type.shape());
  const Term grad_p =
      body.compute("aten.nll_loss_backward", {grad, log_p, targets, {}, call.operands[3]}, {type}, call.attrs)[0];
  const Term grad_x = body.compute("aten._log_softmax_backward_data", {grad_p, log_p}, {type},
                                   {{"dim", int64_t{1}}, {"input_dtype", type.dtype}})[0];
  return {body.cast(grad_x, logits.type.dtype)};
}

}  // namespace sfsdp::ir
