// SPDX-License-Identifier: BSD-3-Clause
// y = x · wᵀ over the last dimension of x, as torch::linear computes it, and its gradients. LibTorch adds a bias within the
// product (addmm) for two dimensions alone; else the sum is an op of its own.
#include "sfsdp/ir/canonical/families.h"

namespace sfsdp::ir {
namespace {

// All dimensions but the last as rows.
Term as_rows(Body& body, const Term& x) {
  const int64_t width = x.type.dims.back().size;
  return body.view(x, {width == 0 ? 0 : x.type.numel() / width, width});
}

// `rows` [r, width] in the shape of `like` but for the last dimension.
Term with_lead(Body& body, const Term& rows, const Term& like) {
  Body::Sizes shape = like.type.shape();
  shape.back() = rows.type.dims.back().size;
  return body.view(rows, shape);
}

Term product(Body& body, const Term& a, const Term& b) {
  const Type type = Type::tensor(a.type.dtype, {a.type.dims[0].size, b.type.dims[1].size});
  return body.compute("aten.mm", {a, b}, {type})[0];
}

}  // namespace

// x [..., k], w [n, k], perhaps a bias [n]
std::vector<Term> decompose_linear(const CanonicalCall& call, Body& body) {
  const Term &x = call.operands[0], &weight = call.operands[1];
  const Term rows = as_rows(body, x);
  if (call.operands.size() == 2) return {with_lead(body, product(body, rows, body.t(weight)), x)};
  const Type type = Type::tensor(x.type.dtype, {rows.type.dims[0].size, weight.type.dims[0].size});
  return {with_lead(body, body.compute("aten.addmm", {call.operands[2], rows, body.t(weight)}, {type})[0], x)};
}

// grad [..., n], w [n, k]
std::vector<Term> decompose_linear_dx(const CanonicalCall& call, Body& body) {
  const Term &grad = call.operands[0], &weight = call.operands[1];
  return {with_lead(body, product(body, as_rows(body, grad), weight), grad)};
}

// grad [..., n], x [..., k]
std::vector<Term> decompose_linear_dw(const CanonicalCall& call, Body& body) {
  const Term &grad = call.operands[0], &x = call.operands[1];
  return {product(body, body.t(as_rows(body, grad)), as_rows(body, x))};
}

// a [..., k], b [k, n], perhaps a bias [n]; or as many matrices of both
std::vector<Term> decompose_matmul(const CanonicalCall& call, Body& body) {
  const Term &a = call.operands[0], &b = call.operands[1];
  if (b.type.dims.size() == 3) {
    Body::Sizes shape = a.type.shape();
    shape.back() = b.type.dims.back().size;
    return body.compute("aten.bmm", {a, b}, {Type::tensor(a.type.dtype, shape)});
  }
  const Term rows = as_rows(body, a);
  if (call.operands.size() == 2) return {with_lead(body, product(body, rows, b), a)};
  const Type type = Type::tensor(a.type.dtype, {rows.type.dims[0].size, b.type.dims[1].size});
  return {with_lead(body, body.compute("aten.addmm", {call.operands[2], rows, b}, {type})[0], a)};
}

}  // namespace sfsdp::ir
