// SPDX-License-Identifier: BSD-3-Clause
// Cross entropy of rows of logits with class numbers, in f32 or wider (in_dtype=true: in the dtype of the logits). What is left
// for backward is a number per row, lse; LibTorch keeps the logarithms of all probabilities in its place.
#include "sfsdp/ir/canonical/families.h"

namespace sfsdp::ir {
namespace {

DType loss_dtype(const CanonicalCall& call, const Term& logits) {
  return call.attrs.contains("in_dtype") ? logits.type.dtype : wide(logits.type.dtype);
}

// Those of LibTorch's ops.
Emitter::Attributes loss_attrs(const CanonicalCall& call) {
  Emitter::Attributes attrs = call.attrs;
  attrs.erase("in_dtype");
  return attrs;
}

}  // namespace

// logits [n, classes], targets [n]
std::vector<Term> decompose_cross_entropy(const CanonicalCall& call, Body& body) {
  const Term wider = body.cast(call.operands[0], loss_dtype(call, call.operands[0]));
  const Term log_p = body.compute("aten._log_softmax", {wider}, {Type::tensor(wider.type.dtype, wider.type.shape())},
                                  {{"dim", int64_t{1}}, {"half_to_float", false}})[0];
  const auto reduction = call.attrs.find("reduction");
  const bool each = reduction != call.attrs.end() && std::get<int64_t>(reduction->second) == 0;
  const Type loss = Type::tensor(log_p.type.dtype, each ? call.operands[1].type.shape() : Body::Sizes());
  std::vector<Term> results = body.compute("aten.nll_loss_forward", {log_p, call.operands[1], {}},
                                           {loss, Type::tensor(log_p.type.dtype, {})}, loss_attrs(call));
  results.push_back(log_p);
  return results;
}

// grad of the loss, logits, targets, count, lse
std::vector<Term> decompose_cross_entropy_backward(const CanonicalCall& call, Body& body) {
  const Term &grad = call.operands[0], &logits = call.operands[1], &targets = call.operands[2];
  const Term& log_p = call.operands[4];
  const Type type = Type::tensor(loss_dtype(call, logits), logits.type.shape());
  const Term grad_p =
      body.compute("aten.nll_loss_backward", {grad, log_p, targets, {}, call.operands[3]}, {type}, loss_attrs(call))[0];
  const Term grad_x = body.compute("aten._log_softmax_backward_data", {grad_p, log_p}, {type},
                                   {{"dim", int64_t{1}}, {"input_dtype", type.dtype}})[0];
  return {body.cast(grad_x, logits.type.dtype)};
}

Type lse_of(const CanonicalCall& call) {
  const Term& logits = call.operands[0];
  return Type::tensor(loss_dtype(call, logits), {logits.type.dims[0].size});
}

}  // namespace sfsdp::ir
