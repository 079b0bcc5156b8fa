// SPDX-License-Identifier: BSD-3-Clause
// Attention as LibTorch's kernel for CPUs computes it. It takes no documents, so it gets a mask that is made of them.
#include <limits>
#include <utility>

#include "sfsdp/ir/canonical/families.h"
#include "sfsdp/ir/view_geometry.h"

namespace sfsdp::ir {
namespace {

constexpr size_t kMask = 3, kMaskOfBackward = 6;

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

// What is added to the scores, [B, 1, S, S]: 0 where a query's document is the key's and the key is no later, else -inf.
//   documents: [B, S]
Term mask_of(const Term& documents, DType dtype, Body& body) {
  const Term queries = body.unsqueeze(documents, 2), keys = body.unsqueeze(documents, 1);
  const Term same = body.compute("aten.eq.Tensor", {queries, keys}, {pointwise_type(DType::b1, {queries, keys})})[0];
  const Term earlier = body.unsqueeze(body.pointwise("aten.tril", {same}), 1);
  const auto number = [&](double value) {
    return body.compute("aten.scalar_tensor", {}, {Type::tensor(dtype, {})}, {{"dtype", dtype}, {"s", value}})[0];
  };
  const Term zero = number(0), minus_infinity = number(-std::numeric_limits<double>::infinity());
  return body.compute("aten.where.self", {earlier, zero, minus_infinity}, {pointwise_type(dtype, {earlier})})[0];
}

// The call as LibTorch's kernel takes it.
CanonicalCall with_mask(const CanonicalCall& call, size_t mask, Body& body) {
  const auto documents = call.attrs.find("documents");
  if (documents == call.attrs.end() || !std::get<bool>(documents->second)) return call;
  CanonicalCall masked = call;
  masked.operands[mask] = mask_of(call.operands[mask], call.operands[1].type.dtype, body);
  for (const char* own : {"documents", "document_tokens", "is_causal"}) masked.attrs.erase(own);
  if (mask == kMaskOfBackward) masked.attrs["is_causal"] = false;  // without a default in the schema
  return masked;
}

}  // namespace

// q [B, H, S, d], k [B, G, T, d], v [B, G, T, e], perhaps a mask or documents; G divides H. Also gives each row's logarithm
// of its sum.
std::vector<Term> decompose_sdpa(const CanonicalCall& call, Body& body) {
  const Term &q = call.operands[0], &v = call.operands[2];
  Body::Sizes out = q.type.shape(), rows(out.begin(), out.end() - 1);
  out.back() = v.type.dims.back().size;
  const CanonicalCall masked = with_mask(call, kMask, body);
  return body.compute("aten._scaled_dot_product_flash_attention_for_cpu", masked.operands,
                      {by_row(q.type.dtype, out), by_row(wide(q.type.dtype), rows)}, masked.attrs);
}

// grad, q, k, v, o, lse, perhaps a mask or documents
std::vector<Term> decompose_sdpa_backward(const CanonicalCall& call, Body& body) {
  std::vector<Type> results;
  for (size_t i = 1; i <= 3; ++i) results.push_back(by_row(call.operands[i].type.dtype, call.operands[i].type.shape()));
  const CanonicalCall masked = with_mask(call, kMaskOfBackward, body);
  return body.compute("aten._scaled_dot_product_flash_attention_for_cpu_backward", masked.operands, results,
                      masked.attrs);
}

}  // namespace sfsdp::ir
