// SPDX-License-Identifier: BSD-3-Clause
// RMSNorm (arXiv 1910.07467) as torch::rms_norm and models' own code compute it, and what autograd makes of that.
#include "sfsdp/ir/canonical/families.h"

namespace sfsdp::ir {

std::vector<Term> decompose_rms_norm(const CanonicalCall& call, Body& body) {
  const Term &x = call.operands[0], &weight = call.operands[1];
  const Body::Sizes dims = last_dims(x.type.dims.size(), std::get<int64_t>(call.attrs.at("dims")));
  const Term wider = body.cast(x, wide(x.type.dtype));
  const Term squares = body.pointwise("aten.pow.Tensor_Scalar", {wider}, {{"exponent", int64_t{2}}});
  const Term mean = body.reduced("aten.mean.dim", squares, dims);
  const Term shifted = body.pointwise("aten.add.Scalar", {mean}, {{"other", call.attrs.at("eps")}});
  const Term rstd = body.pointwise("aten.rsqrt", {shifted});
  Term y = body.mul(wider, rstd);
  if (call.attrs.contains("cast_first")) y = body.cast(y, x.type.dtype);
  if (weight.base) y = body.mul(y, weight);
  return {body.cast(y, x.type.dtype), rstd};
}

std::vector<Term> decompose_rms_norm_backward(const CanonicalCall& call, Body& body) {
  const Term &grad = call.operands[0], &x = call.operands[1], &weight = call.operands[2], &rstd = call.operands[3];
  const Term& residual = call.operands[4];
  const Body::Sizes shape = x.type.shape();
  const int64_t count = std::get<int64_t>(call.attrs.at("dims"));
  const Body::Sizes dims = last_dims(shape.size(), count);
  const Term wider = body.cast(x, wide(x.type.dtype));
  const bool cast_first = call.attrs.contains("cast_first");
  const DType inner = cast_first ? x.type.dtype : wide(x.type.dtype);
  const auto only = call.attrs.find("only");
  const auto is_asked = [&](const char* of) {
    return only == call.attrs.end() || std::get<std::string>(only->second) == of;
  };
  Term g = body.cast(grad, inner), grad_weight;
  if (weight.base && is_asked("w")) {
    Body::Sizes rows;
    for (int64_t d = 0; d < static_cast<int64_t>(shape.size()) - count; ++d) rows.push_back(d);
    const Term each = body.mul(g, body.cast(body.mul(wider, rstd), inner));
    // a norm over all dimensions has one row; a sum over no dimension is LibTorch's for all of them
    const Term sum = rows.empty() ? each : body.reduced("aten.sum.dim_IntList", each, rows);
    grad_weight = body.cast(body.view(sum, weight.type.shape()), weight.type.dtype);
  }
  if (!is_asked("x")) return {Term(), grad_weight};
  if (weight.base) g = body.mul(g, weight);
  g = body.cast(g, wide(x.type.dtype));
  // d/dx of x · rstd: rstd · g, and through rstd = (mean(x²) + eps)^-1/2.
  const Term of_rstd = body.reduced("aten.sum.dim_IntList", body.mul(g, wider), dims);
  Term grad_x = body.mul(g, rstd);
  if (residual.base) grad_x = body.add(residual, grad_x);
  const Term cube = body.pointwise("aten.pow.Tensor_Scalar", {rstd}, {{"exponent", int64_t{3}}});
  const Term half = body.pointwise("aten.mul.Scalar", {of_rstd}, {{"other", -0.5}});
  int64_t numel = 1;
  for (const int64_t dim : dims) numel *= shape[static_cast<size_t>(dim)];
  const Term of_mean =
      body.pointwise("aten.div.Scalar", {body.expand(body.mul(half, cube), shape)}, {{"other", numel}});
  const Term line = body.pointwise("aten.pow.Tensor_Scalar", {wider}, {{"exponent", 1.0}});
  const Term slope = body.pointwise("aten.mul.Scalar", {line}, {{"other", 2.0}});
  grad_x = body.add(grad_x, body.mul(of_mean, slope));
  return {body.cast(grad_x, x.type.dtype), grad_weight};
}

}  // namespace sfsdp::ir
