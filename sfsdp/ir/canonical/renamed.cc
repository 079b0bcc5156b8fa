// SPDX-License-Identifier: BSD-3-Clause
// Canonical ops that one op of LibTorch computes with the same operands and attributes.
#include "sfsdp/ir/canonical/families.h"

namespace sfsdp::ir {
namespace {

Type like(const Term& x) { return Type::tensor(x.type.dtype, x.type.shape()); }

// The last dimensions of x are 1.
Type rows_of(const CanonicalCall& call, const Term& x) {
  Body::Sizes shape = x.type.shape();
  const auto dims = std::get<Body::Sizes>(call.attrs.at("normalized_shape")).size();
  for (size_t d = shape.size() - dims; d < shape.size(); ++d) shape[d] = 1;
  return Type::tensor(wide(x.type.dtype), shape);
}

}  // namespace

std::vector<Term> decompose_embedding(const CanonicalCall& call, Body& body) {
  const Term &weight = call.operands[0], &ids = call.operands[1];
  Body::Sizes shape = ids.type.shape();
  shape.push_back(weight.type.dims.back().size);
  return body.compute("aten.embedding", call.operands, {Type::tensor(weight.type.dtype, shape)}, call.attrs);
}

std::vector<Term> decompose_embedding_backward(const CanonicalCall& call, Body& body) {
  const Term& grad = call.operands[0];
  const Body::Sizes shape = {std::get<int64_t>(call.attrs.at("num_weights")), grad.type.dims.back().size};
  return body.compute("aten.embedding_dense_backward", call.operands, {Type::tensor(grad.type.dtype, shape)},
                      call.attrs);
}

std::vector<Term> decompose_layer_norm(const CanonicalCall& call, Body& body) {
  const Term& x = call.operands[0];
  const Type rows = rows_of(call, x);
  return body.compute("aten.native_layer_norm", call.operands, {like(x), rows, rows}, call.attrs);
}

// A gradient that output_mask= does not ask for is a token.
std::vector<Term> decompose_layer_norm_backward(const CanonicalCall& call, Body& body) {
  const Type of_weight =
      Type::tensor(call.operands[1].type.dtype, std::get<Body::Sizes>(call.attrs.at("normalized_shape")));
  return body.compute("aten.native_layer_norm_backward", call.operands, {like(call.operands[1]), of_weight, of_weight},
                      call.attrs);
}

}  // namespace sfsdp::ir
