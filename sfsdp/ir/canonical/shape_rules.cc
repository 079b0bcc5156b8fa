// SPDX-License-Identifier: BSD-3-Clause
// The rules of canonical ops, named in opset.def.
#include "sfsdp/ir/shape_rules.h"
#include "sfsdp/base/check.h"

namespace sfsdp::ir {
namespace {

// Operand `index`: at least one dimension, of which the last has `width`.
const Type& rows_of(RuleContext& context, size_t index, int64_t width) {
  const Type& type = context.operand(index);
  if (type.dims.empty() || type.dims.back().size != width)
    context.stop(concat("has an operand ", index, " of ", type), concat("expected a last dimension of ", width));
  return type;
}

Shape with_width(const Type& type, int64_t width) {
  Shape shape = type.shape();
  shape.back() = width;
  return shape;
}

// dims=, within 1 and the dimensions of operand `index`.
size_t normalized_dims(RuleContext& context, size_t index) {
  const int64_t dims = context.integer("dims"), rank = std::ssize(context.operand(index).dims);
  if (dims < 1 || dims > rank)
    context.stop(concat("has dims=", dims), concat("expected 1 to the ", rank, " dimensions of operand ", index));
  return static_cast<size_t>(dims);
}

DType statistics_dtype(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16 ? DType::f32 : dtype; }

struct NormShapes {
  Shape rows, weight;  // of the statistics; of the weight
};

NormShapes norm_shapes(RuleContext& context, size_t x) {
  const size_t dims = normalized_dims(context, x);
  NormShapes shapes;
  shapes.rows = context.operand(x).shape();
  const auto first = shapes.rows.end() - static_cast<std::ptrdiff_t>(dims);
  shapes.weight.assign(first, shapes.rows.end());
  std::fill(first, shapes.rows.end(), 1);
  return shapes;
}

}  // namespace

void rule_linear(RuleContext& context) {
  const Type& weight = context.tensor(1, 2);
  const Type& x = rows_of(context, 0, weight.dims[1].size);
  context.expect_dtype(x.dtype, weight.dtype, "the weight");
  if (context.has_operand(2)) {
    context.expect_shape({weight.dims[0].size}, context.operand(2), "the bias");
    context.expect_dtype(x.dtype, context.operand(2).dtype, "the bias");
  }
  context.expect_result(with_width(x, weight.dims[0].size));
}

void rule_linear_dx(RuleContext& context) {
  const Type& weight = context.tensor(1, 2);
  const Type& grad = rows_of(context, 0, weight.dims[0].size);
  context.expect_dtype(grad.dtype, weight.dtype, "the weight");
  context.expect_result(with_width(grad, weight.dims[1].size));
}

void rule_linear_dw(RuleContext& context) {
  const Type &grad = context.operand(0), &x = context.operand(1);
  if (grad.dims.empty() || x.dims.empty() ||
      grad.numel() / std::max<int64_t>(grad.dims.back().size, 1) !=
          x.numel() / std::max<int64_t>(x.dims.back().size, 1))
    context.stop(concat("has operands ", grad, " and ", x), "expected as many rows in both");
  context.expect_dtype(grad.dtype, x.dtype, "operand 1");
  context.expect_result({grad.dims.back().size, x.dims.back().size});
}

void rule_rms_norm(RuleContext& context) {
  context.need_number("eps");
  const Type& x = context.operand(0);
  const NormShapes shapes = norm_shapes(context, 0);
  if (context.has_operand(1)) context.expect_shape(shapes.weight, context.operand(1), "the weight");
  context.flag("cast_first");
  context.expect_like(0, x);
  context.expect(1, statistics_dtype(x.dtype), shapes.rows);
}

void rule_rms_norm_backward(RuleContext& context) {
  context.need_operands({1, 3});
  const Type &grad = context.operand(0), &x = context.operand(1);
  const NormShapes shapes = norm_shapes(context, 1);
  context.expect_shape(x.shape(), grad, "the gradient");
  context.expect_dtype(x.dtype, grad.dtype, "the gradient");
  context.expect_shape(shapes.rows, context.operand(3), "rstd");
  context.flag("cast_first");
  context.expect_like(0, x);
  if (context.has_operand(4)) {
    context.expect_shape(x.shape(), context.operand(4), "the residual");
    context.expect_dtype(statistics_dtype(x.dtype), context.operand(4).dtype, "the residual");
  }
  const bool has_weight = context.has_operand(2);
  if (has_weight != (context.result(1).kind == Type::Kind::Tensor))
    context.stop("has the wrong result 1", "expected a tensor where there is a weight, else a token");
  if (!has_weight) return;
  context.expect_shape(shapes.weight, context.operand(2), "the weight");
  context.expect(1, context.operand(2).dtype, shapes.weight);
}

// cos and sin broadcast with half of the last dimension.
void rule_rope(RuleContext& context) {
  const Type& x = context.operand(0);
  if (x.dims.empty() || x.dims.back().size % 2 != 0)
    context.stop(concat("turns pairs of ", x), "expected an even last dimension");
  Shape half = x.shape();
  half.back() /= 2;
  for (const size_t i : {1u, 2u}) {
    const Shape angle = context.operand(i).shape();
    bool fits = angle.size() <= half.size();
    for (size_t d = 0; fits && d < angle.size(); ++d) {
      const int64_t size = angle[angle.size() - 1 - d];
      fits = size == 1 || size == half[half.size() - 1 - d];
    }
    if (!fits)
      context.stop(concat("has an operand ", i, " of ", context.operand(i)),
                   concat("expected one that broadcasts with half of ", x));
  }
  context.expect_like(0, x);
}

// targets are class numbers, one for each row of operand `logits`.
void check_targets(RuleContext& context, size_t logits) {
  const Type& x = context.tensor(logits, 2);
  context.expect_shape({x.dims[0].size}, context.operand(logits + 1), "the targets");
  context.expect_dtype(DType::i64, context.operand(logits + 1).dtype, "the targets");
}

void rule_cross_entropy(RuleContext& context) {
  check_targets(context, 0);
  const DType dtype = statistics_dtype(context.operand(0).dtype);
  const bool each = context.integer("reduction", 1) == 0;
  context.expect(0, dtype, each ? Shape{context.operand(0).dims[0].size} : Shape{});
  context.expect(1, dtype, {});
}

void rule_cross_entropy_backward(RuleContext& context) {
  check_targets(context, 1);
  context.expect_like(0, context.operand(1));
}

}  // namespace sfsdp::ir
