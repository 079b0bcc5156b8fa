// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/canonical/body.h"

namespace sfsdp::ir {

Body::Sizes last_dims(size_t rank, int64_t count) {
  Body::Sizes dims;
  for (int64_t d = static_cast<int64_t>(rank) - count; d < static_cast<int64_t>(rank); ++d) dims.push_back(d);
  return dims;
}

Term Body::cast(const Term& x, DType dtype) {
  if (x.type.dtype == dtype) return x;
  return compute("aten._to_copy", {x}, {pointwise_type(dtype, {x})}, {{"dtype", dtype}})[0];
}

Term Body::pointwise(const std::string& opcode, const std::vector<Term>& operands, const Emitter::Attributes& attrs) {
  return compute(opcode, operands, {pointwise_type(operands[0].type.dtype, operands)}, attrs)[0];
}

Term Body::reduced(const std::string& opcode, const Term& x, const Sizes& dims) {
  Sizes shape = x.type.shape();
  for (const int64_t dim : dims) shape[static_cast<size_t>(dim)] = 1;
  return compute(opcode, {x}, {Type::tensor(x.type.dtype, shape)}, {{"dim", dims}, {"keepdim", true}})[0];
}

Term Body::view(const Term& x, const Sizes& shape) {
  if (x.type.shape() == shape) return x;
  return emitter_.view("aten.view", x, viewed(x, shape), {{"size", shape}});
}

Term Body::t(const Term& x) { return emitter_.view("aten.t", x, transposed(x, 0, 1), {}); }

Term Body::unsqueeze(const Term& x, size_t dim) {
  return emitter_.view("aten.unsqueeze", x, unsqueezed(x, dim), {{"dim", static_cast<int64_t>(dim)}});
}

Term Body::select(const Term& x, size_t dim, int64_t index) {
  return emitter_.view("aten.select.int", x, selected(x, dim, index),
                       {{"dim", static_cast<int64_t>(dim)}, {"index", index}});
}

Term Body::expand(const Term& x, const Sizes& shape) {
  return emitter_.view("aten.expand", x, expanded(x, shape), {{"size", shape}});
}

Term Body::slice(const Term& x, size_t dim, int64_t start, int64_t end) {
  return emitter_.view("aten.slice.Tensor", x, sliced(x, dim, start, end),
                       {{"dim", static_cast<int64_t>(dim)}, {"start", start}, {"end", end}});
}

Term Body::view_as_complex(const Term& x) { return emitter_.view("aten.view_as_complex", x, as_complex(x), {}); }

Term Body::view_as_real(const Term& x) { return emitter_.view("aten.view_as_real", x, as_real(x), {}); }

}  // namespace sfsdp::ir
