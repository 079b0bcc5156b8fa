// SPDX-License-Identifier: BSD-3-Clause
// torch::rms_norm, and x · rsqrt(mean(x²) + eps) · w of a model's own, computed in the dtype of x or in f32; in backward
// with the gradients of x and w, or of one of them. Left alone: other formulas (x / sqrt, (1 + w), a weight of more than the
// normalised dimensions).
#include <optional>

#include "sfsdp/ir/access.h"
#include "sfsdp/passes/canonical/proposals.h"
#include "sfsdp/passes/canonical/walk.h"

namespace sfsdp::passes {
namespace {

using ir::Op, ir::Value;

// A weight of the last dimensions of `x`.
bool is_weight(const Value* value, const Value* x, int64_t dims) {
  const auto shape = value->type().shape(), all = x->type().shape();
  return std::ssize(shape) == dims && std::equal(shape.rbegin(), shape.rend(), all.rbegin());
}

// What rstd = rsqrt(mean(x²) + eps) was made of.
struct Statistics {
  Value *wide = nullptr, *x = nullptr, *rstd = nullptr;
  int64_t dims = 0;
  ir::Attr eps;
};

// A gradient as the op takes it: in the dtype of x, before it was widened, or as it is.
Value* gradient_for(const Value* x, Value* grad) {
  Value* narrow = before_widening(grad);
  return narrow->type().dtype == x->type().dtype ? narrow : grad;
}

std::optional<Statistics> statistics_of(Value* rstd) {
  const Op* rsqrt = made_by(rstd, "aten.rsqrt");
  const Op* shifted = rsqrt ? made_by(rsqrt->operands[0], "aten.add.Scalar") : nullptr;
  const Op* mean = shifted ? made_by(shifted->operands[0], "aten.mean.dim") : nullptr;
  const Op* squares = mean ? made_by(mean->operands[0], "aten.pow.Tensor_Scalar") : nullptr;
  if (!squares || !shifted->has_attr("other")) return std::nullopt;
  const auto dims = static_cast<int64_t>(ir::OpAccess(*mean).rows().dims);
  if (dims == 0 || !mean->attr_or("keepdim", false)) return std::nullopt;
  Value* wide = squares->operands[0];
  return Statistics{wide, before_widening(wide), rstd, dims, shifted->attrs.at("other")};
}

// Weights that `scaled` is multiplied with.
std::vector<Value*> weights_of(Value* scaled, const Statistics& s, const OpFinder& finder) {
  std::vector<Value*> weights;
  for (const Op* product : finder.readers(finder.term(scaled), "aten.mul.Tensor"))
    if (Value* other = other_operand(*product, scaled); is_weight(other, s.x, s.dims)) weights.push_back(other);
  return weights;
}

}  // namespace

std::vector<Proposal> propose_rms_norm(Op* op, const OpFinder& finder) {
  std::vector<Proposal> proposals;
  if (!op->is("aten.rsqrt")) return proposals;
  const auto s = statistics_of(op->result());
  if (!s) return proposals;
  const auto propose = [&](Value* weight, bool cast_first) {
    Proposal p{"rms_norm", {s->x, weight}, {{"dims", s->dims}, {"eps", s->eps}}};
    if (cast_first) p.attrs["cast_first"] = true;
    proposals.push_back(std::move(p));
  };
  for (const Op* scale : finder.readers(finder.term(s->rstd), "aten.mul.Tensor")) {
    if (other_operand(*scale, s->rstd) != s->wide || scale->section != op->section) continue;
    for (Value* weight : weights_of(scale->result(), *s, finder)) propose(weight, false);
    for (const Op* copy : finder.readers(finder.term(scale->result()), "aten._to_copy"))
      for (Value* weight : weights_of(copy->result(), *s, finder)) propose(weight, true);
    propose(nullptr, false);
  }
  return proposals;
}

namespace {

// What reads x · rstd, in its dtype or in that of x: w multiplies it in forward, the gradient of y in backward.
struct Normed {
  Value* value = nullptr;
  bool cast_first = false;
};
std::vector<Normed> normed_of(const Statistics& s, const OpFinder& finder) {
  std::vector<Normed> all;
  for (const Op* scale : finder.readers(finder.term(s.rstd), "aten.mul.Tensor")) {
    if (other_operand(*scale, s.rstd) != s.wide) continue;
    all.push_back({scale->result(), false});
    for (const Op* copy : finder.readers(finder.term(scale->result()), "aten._to_copy"))
      all.push_back({copy->result(), true});
  }
  return all;
}

// The gradient of the weight alone: Σ g · (x · rstd), where nothing asks for that of x.
std::vector<Proposal> propose_of_weight(const Op& sum, const OpFinder& finder) {
  std::vector<Proposal> proposals;
  const Op* each = made_by(sum.operands[0], "aten.mul.Tensor");
  if (!each) return proposals;
  for (Value* inner : each->operands) {
    const Op* copy = made_by(inner, "aten._to_copy");
    const Op* scale = made_by(copy ? copy->operands[0] : inner, "aten.mul.Tensor");
    if (!scale) continue;
    for (Value* rstd : scale->operands) {
      const auto s = statistics_of(rstd);
      if (!s || !finder.readers(finder.term(s->rstd), "aten.pow.Tensor_Scalar").empty()) continue;
      for (const Normed& normed : normed_of(*s, finder))
        for (Value* weight : weights_of(normed.value, *s, finder)) {
          Value* grad = other_operand(*each, inner);
          Proposal p{"rms_norm_backward",
                     {normed.cast_first ? grad : gradient_for(s->x, grad), s->x, weight, s->rstd, nullptr},
                     {{"dims", s->dims}, {"only", std::string("w")}}};
          if (normed.cast_first) p.attrs["cast_first"] = true;
          proposals.push_back(std::move(p));
        }
    }
  }
  return proposals;
}

}  // namespace

std::vector<Proposal> propose_rms_norm_backward(Op* op, const OpFinder& finder) {
  std::vector<Proposal> proposals;
  if (op->section != ir::Section::Bwd) return proposals;
  if (op->is("aten.sum.dim_IntList")) return propose_of_weight(*op, finder);
  if (!op->is("aten.pow.Tensor_Scalar")) return proposals;
  const auto s = statistics_of(op->operands[0]);
  if (!s) return proposals;
  const auto propose = [&](Value* grad, Value* weight, Value* residual, bool cast_first) {
    Proposal p{"rms_norm_backward", {grad, s->x, weight, s->rstd, residual}, {{"dims", s->dims}}};
    if (cast_first) p.attrs["cast_first"] = true;
    proposals.push_back(p);
    p.attrs["only"] = std::string("x");  // of a frozen weight
    if (weight) proposals.push_back(std::move(p));
  };
  // rstd³ · -½ · Σ g · x leads back to g, the gradient of x · rstd in the wider dtype.
  for (const Op* of_mean : finder.readers(finder.term(op->result()), "aten.mul.Tensor")) {
    const Op* half = made_by(other_operand(*of_mean, op->result()), "aten.mul.Scalar");
    const Op* sum = half ? made_by(half->operands[0], "aten.sum.dim_IntList") : nullptr;
    const Op* product = sum ? made_by(sum->operands[0], "aten.mul.Tensor") : nullptr;
    if (!product) continue;
    Value* g = other_operand(*product, s->wide);
    std::vector<Value*> residuals = {nullptr};
    for (const Op* first : finder.readers(finder.term(g), "aten.mul.Tensor"))
      if (other_operand(*first, g) == s->rstd)
        for (const Op* sum_of : finder.readers(finder.term(first->result()), "aten.add.Tensor"))
          residuals.push_back(other_operand(*sum_of, first->result()));
    const auto with_weight = [&](Value* weighted, bool cast_first) {
      const Op* times = made_by(weighted, "aten.mul.Tensor");
      if (!times) return;
      for (Value* weight : times->operands)
        if (is_weight(weight, s->x, s->dims))
          for (Value* residual : residuals)
            propose(cast_first ? other_operand(*times, weight) : gradient_for(s->x, other_operand(*times, weight)),
                    weight, residual, cast_first);
    };
    with_weight(g, false);
    if (before_widening(g) != g) with_weight(before_widening(g), true);
    for (Value* residual : residuals) propose(gradient_for(s->x, g), nullptr, residual, false);
  }
  return proposals;
}

}  // namespace sfsdp::passes
