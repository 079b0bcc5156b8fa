// SPDX-License-Identifier: BSD-3-Clause
// Rotary embedding (arXiv 2104.09864) and its inverse, which is its gradient, in f32 or wider (in_dtype=true: in the dtype of
// x). What is turned are neighbours (2j, 2j + 1), or with halves=true (j, j + n) of 2n elements. The angles are cos and sin
// of n elements; of 2n, each half the same, for x · cos + rotate_half(x) · sin; or complex numbers e^(i angle).
#include "sfsdp/ir/canonical/families.h"

namespace sfsdp::ir {
namespace {

// What models write; the arithmetic is the same.
struct Form {
  bool is_complex, is_in_halves, has_full_tables;
  bool is_sliced;       // each part taken by itself, x[..., :n]
  bool is_direct_last;  // and both added up before grad · cos: the order in which autograd met them
  DType dtype;          // of the arithmetic

  explicit Form(const CanonicalCall& call)
      : is_complex(call.operands.size() == 2),
        is_in_halves(call.attrs.contains("halves")),
        has_full_tables(!is_complex && is_in_halves && width(call.operands[1]) == width(call.operands[0])),
        is_sliced(call.attrs.contains("sliced")),
        is_direct_last(call.attrs.contains("direct_last")),
        dtype(call.attrs.contains("in_dtype") ? call.operands[0].type.dtype : wide(call.operands[0].type.dtype)) {}

  static int64_t width(const Term& x) { return x.type.dims.empty() ? 1 : x.type.dims.back().size; }
};

struct Pair {
  Term first, second;
};

Body::Sizes paired(const Term& x) {
  Body::Sizes shape = x.type.shape();
  shape.back() /= 2;
  shape.push_back(2);
  return shape;
}

Pair halves_of(Body& body, const Term& x) {
  const size_t dim = x.type.dims.size() - 1;
  const int64_t n = x.type.dims.back().size / 2;
  return {body.slice(x, dim, 0, n), body.slice(x, dim, n, 2 * n)};
}

Pair pair_of(Body& body, const Term& x, const Form& form) {
  if (form.is_in_halves) return halves_of(body, x);
  const Term pairs = body.view(x, paired(x));
  const size_t dim = x.type.dims.size();
  return {body.select(pairs, dim, 0), body.select(pairs, dim, 1)};
}

Term joined(Body& body, const Term& first, const Term& second, const Type& like) {
  return body.list("aten.cat", {first, second}, Type::tensor(first.type.dtype, like.shape()),
                   {{"dim", static_cast<int64_t>(like.dims.size()) - 1}});
}

// Products of complex numbers; the table of the inverse is the conjugate one.
Term turned_complex(Body& body, const Term& x, const Term& table, bool inverse, const Form& form) {
  const Term pairs = body.view_as_complex(body.view(body.cast(x, form.dtype), paired(x)));
  Term angles = table;
  if (inverse) {
    const Term conjugate = body.compute("aten._conj", {table}, {table.type})[0];
    angles = body.pointwise("aten.clone", {conjugate});
  }
  return body.view(body.view_as_real(body.mul(pairs, angles)), x.type.shape());
}

// As autograd has it for parts that were taken one by one: each becomes a tensor of both, of which one is 0.
Term placed(Body& body, const Term& part, bool second, const Type& like, const Form& form) {
  const auto rank = static_cast<int64_t>(like.dims.size());
  const int64_t size = like.dims.back().size, index = second ? 1 : 0;
  Body::Sizes shape = like.shape();
  Emitter::Attributes attrs = {{"dim", rank - 1}};
  if (form.is_in_halves)
    attrs.merge({{"start", index * size / 2}, {"end", (index + 1) * size / 2}, {"step", int64_t{1}}});
  else
    attrs.merge({{"start", index}, {"end", size}, {"step", int64_t{2}}});
  if (!form.is_sliced) {
    shape.back() /= 2;
    shape.push_back(2);
    attrs = {{"dim", rank}, {"index", index}};
  }
  attrs["input_sizes"] = shape;
  return body.compute(form.is_sliced ? "aten.slice_backward" : "aten.select_backward", {part},
                      {Type::tensor(part.type.dtype, shape)}, attrs)[0];
}

Term with_rotate_half(Body& body, const Term& x, const Term& cos, const Term& sin) {
  const auto [first, second] = halves_of(body, x);
  const Term rotated = joined(body, body.pointwise("aten.neg", {second}), first, x.type);
  return body.add(body.mul(x, cos), body.mul(rotated, sin));
}

Term without_rotate_half(Body& body, const Term& grad, const Term& cos, const Term& sin, const Form& form) {
  const auto [first, second] = halves_of(body, body.mul(grad, sin));
  const Term direct = body.mul(grad, cos), minus = body.pointwise("aten.neg", {first});
  if (!form.is_sliced) return body.add(direct, joined(body, second, minus, grad.type));
  const Term to_first = placed(body, second, false, grad.type, form),
             to_second = placed(body, minus, true, grad.type, form);
  if (form.is_direct_last) return body.add(body.add(to_second, to_first), direct);
  return body.add(body.add(direct, to_first), to_second);
}

}  // namespace

std::vector<Term> decompose_rope(const CanonicalCall& call, Body& body) {
  const Term &x = call.operands[0], &cos = call.operands[1], &sin = call.operands.back();
  const Form form(call);
  if (form.is_complex) return {body.cast(turned_complex(body, x, cos, false, form), x.type.dtype)};
  const Term wider = body.cast(x, form.dtype);
  if (form.has_full_tables) return {body.cast(with_rotate_half(body, wider, cos, sin), x.type.dtype)};
  const auto [even, odd] = pair_of(body, wider, form);
  const Term first = body.sub(body.mul(even, cos), body.mul(odd, sin));
  const Term second = body.add(body.mul(even, sin), body.mul(odd, cos));
  if (form.is_in_halves) return {body.cast(joined(body, first, second, x.type), x.type.dtype)};
  const auto dim = static_cast<int64_t>(x.type.dims.size());
  const Term both = body.list("aten.stack", {first, second}, Type::tensor(first.type.dtype, paired(x)), {{"dim", dim}});
  return {body.cast(body.view(both, x.type.shape()), x.type.dtype)};
}

std::vector<Term> decompose_rope_inverse(const CanonicalCall& call, Body& body) {
  const Term &grad = call.operands[0], &cos = call.operands[1], &sin = call.operands.back();
  const Form form(call);
  if (form.is_complex) return {body.cast(turned_complex(body, grad, cos, true, form), grad.type.dtype)};
  const Term wider = body.cast(grad, form.dtype);
  if (form.has_full_tables) return {body.cast(without_rotate_half(body, wider, cos, sin, form), grad.type.dtype)};
  const auto [even, odd] = pair_of(body, wider, form);
  const Term to_even = body.add(body.mul(odd, sin), body.mul(even, cos));
  const Term to_odd = body.add(body.mul(odd, cos), body.mul(body.pointwise("aten.neg", {even}), sin));
  if (form.is_in_halves && !form.is_sliced)
    return {body.cast(joined(body, to_even, to_odd, grad.type), grad.type.dtype)};
  const Term both =
      body.add(placed(body, to_odd, true, grad.type, form), placed(body, to_even, false, grad.type, form));
  return {body.cast(body.view(both, grad.type.shape()), grad.type.dtype)};
}

}  // namespace sfsdp::ir
