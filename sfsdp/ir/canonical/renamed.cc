// SPDX-License-Identifier: BSD-3-Clause
// Canonical ops that one op of LibTorch computes with the same operands and attributes.
#include <utility>

#include "sfsdp/ir/canonical/families.h"
#include "sfsdp/ir/view_geometry.h"

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

namespace {

// [B, H, S, ...] that lies in memory as [B, S, H, ...].
Type by_row(DType dtype, const Body::Sizes& shape) {
  Body::Sizes in_memory = shape;
  std::swap(in_memory[1], in_memory[2]);
  Type type = Type::tensor(dtype, shape);
  type.strides = strides_of(Type::tensor(dtype, in_memory));
  std::swap(type.strides[1], type.strides[2]);
  if (same_layout(type, Type::tensor(dtype, shape))) type.strides.clear();
  return type;
}

}  // namespace

// q [B, H, S, d], k [B, G, T, d], v [B, G, T, e], perhaps a mask; G divides H. Also gives each row's logarithm of its sum.
std::vector<Term> decompose_sdpa(const CanonicalCall& call, Body& body) {
  const Term &q = call.operands[0], &v = call.operands[2];
  Body::Sizes out = q.type.shape(), rows(out.begin(), out.end() - 1);
  out.back() = v.type.dims.back().size;
  return body.compute("aten._scaled_dot_product_flash_attention_for_cpu", call.operands,
                      {by_row(q.type.dtype, out), by_row(wide(q.type.dtype), rows)}, call.attrs);
}

// grad, q, k, v, o, lse, perhaps a mask
std::vector<Term> decompose_sdpa_backward(const CanonicalCall& call, Body& body) {
  std::vector<Type> results;
  for (size_t i = 1; i <= 3; ++i) results.push_back(by_row(call.operands[i].type.dtype, call.operands[i].type.shape()));
  return body.compute("aten._scaled_dot_product_flash_attention_for_cpu_backward", call.operands, results, call.attrs);
}

}  // namespace sfsdp::ir
