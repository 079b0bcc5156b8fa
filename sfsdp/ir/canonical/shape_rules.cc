// SPDX-License-Identifier: BSD-3-Clause
// The rules of canonical ops, named in opset.def.
#include <algorithm>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/shape_rules.h"
#include "sfsdp/mesh/chunk.h"

namespace sfsdp::ir {
namespace {

// Operand `index`: at least one dimension, of which the last has `width`.
const Type& rows_in(RuleContext& context, size_t index, int64_t width) {
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
  const Type& x = rows_in(context, 0, weight.dims[1].size);
  context.expect_dtype(x.dtype, weight.dtype, "the weight");
  if (context.has_operand(2)) {
    context.expect_shape({weight.dims[0].size}, context.operand(2), "the bias");
    context.expect_dtype(x.dtype, context.operand(2).dtype, "the bias");
  }
  context.expect_result(with_width(x, weight.dims[0].size));
}

void rule_linear_dx(RuleContext& context) {
  const Type& weight = context.tensor(1, 2);
  const Type& grad = rows_in(context, 0, weight.dims[0].size);
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

// [n_i, k] or [..., n_i] one after the other against [n, k].
void expect_sum(RuleContext& context, const std::vector<int64_t>& widths, int64_t n, std::string_view whose) {
  int64_t sum = 0;
  for (const int64_t width : widths) sum += width;
  if (sum != n) context.stop(concat("has ", whose, " of ", sum, " together"), concat("expected ", n));
}

void rule_joined_linear(RuleContext& context) {
  const Type& weight = context.tensor(1, 2);
  const Type& x = rows_in(context, 0, weight.dims[1].size);
  context.expect_dtype(x.dtype, weight.dtype, "the weight");
  const Shape widths = context.counts("widths", context.op.results().size());
  for (size_t i = 0; i < widths.size(); ++i) context.expect(static_cast<int>(i), x.dtype, with_width(x, widths[i]));
  expect_sum(context, widths, weight.dims[0].size, "results");
}

void rule_joined_linear_dx(RuleContext& context) {
  const size_t last = context.op.operands.size() - 1;
  const Type& weight = context.tensor(last, 2);
  std::vector<int64_t> widths;
  for (size_t i = 0; i < last; ++i) {
    const Type& grad = context.operand(i);
    if (grad.dims.empty()) context.stop(concat("has an operand ", i, " of ", grad), "expected rows");
    widths.push_back(grad.dims.back().size);
    context.expect_dtype(grad.dtype, weight.dtype, "the weight");
    context.expect_shape(with_width(context.operand(0), widths.back()), grad, concat("operand ", i));
  }
  expect_sum(context, widths, weight.dims[0].size, "gradients");
  Shape order = context.integers("order");
  std::sort(order.begin(), order.end());
  bool all = order.size() == last;
  for (size_t i = 0; all && i < last; ++i) all = order[i] == static_cast<int64_t>(i);
  if (!all) context.stop(concat("has order=", *context.find("order")), concat("expected each of 0 to ", last - 1));
  context.expect_result(with_width(context.operand(0), weight.dims[1].size));
}

void rule_joined_linear_dw(RuleContext& context) {
  const size_t last = context.op.operands.size() - 1;
  const Type& x = context.operand(last);
  if (context.op.results().size() != last)
    context.stop(concat("has ", context.op.results().size(), " results"), concat("expected ", last));
  const auto rows = [](const Type& type) { return type.numel() / std::max<int64_t>(type.dims.back().size, 1); };
  for (size_t i = 0; i < last; ++i) {
    const Type& grad = context.operand(i);
    if (grad.dims.empty() || x.dims.empty() || rows(grad) != rows(x))
      context.stop(concat("has operands ", grad, " and ", x), "expected as many rows in both");
    context.expect_dtype(x.dtype, grad.dtype, concat("operand ", i));
    context.expect(static_cast<int>(i), x.dtype, {grad.dims.back().size, x.dims.back().size});
  }
}

void rule_matmul(RuleContext& context) {
  const Type &a = context.operand(0), &b = context.operand(1);
  const size_t rank = b.dims.size();
  if ((rank != 2 && rank != 3) || a.dims.empty() || (rank == 3 && a.dims.size() != 3))
    context.stop(concat("has operands ", a, " and ", b), "expected rows and a matrix, or as many of both");
  rows_in(context, 0, b.dims[rank - 2].size);
  context.expect_dtype(a.dtype, b.dtype, "operand 1");
  if (rank == 3 && a.dims[0].size != b.dims[0].size)
    context.stop(concat("has ", a.dims[0].size, " and ", b.dims[0].size, " matrices"), "expected as many of both");
  if (context.has_operand(2)) {
    context.expect_shape({b.dims.back().size}, context.operand(2), "the bias");
    context.expect_dtype(a.dtype, context.operand(2).dtype, "the bias");
  }
  context.expect_result(with_width(a, b.dims.back().size));
}

void rule_rms_norm(RuleContext& context) {
  context.need_number("eps");
  const Type& x = context.operand(0);
  const NormShapes shapes = norm_shapes(context, 0);
  if (context.has_operand(1)) context.expect_shape(shapes.weight, context.operand(1), "the weight");
  context.flag("cast_first");
  context.expect_like(0, x);
  context.expect(1, wide(x.dtype), shapes.rows);
}

void rule_rms_norm_backward(RuleContext& context) {
  context.need_operands({1, 3});
  const Type &grad = context.operand(0), &x = context.operand(1);
  const NormShapes shapes = norm_shapes(context, 1);
  context.expect_shape(x.shape(), grad, "the gradient");
  context.expect_dtype(x.dtype, grad.dtype, "the gradient");
  context.expect_shape(shapes.rows, context.operand(3), "rstd");
  context.flag("cast_first");
  const Attr* attr = context.find("only");
  const auto* only = attr ? std::get_if<std::string>(attr) : nullptr;
  if (attr && (!only || (*only != "x" && *only != "w"))) context.stop(concat("has only=", *attr), "expected x or w");
  const auto has = [&](int result, bool wanted) {
    if (wanted != (context.result(result).kind == Type::Kind::Tensor))
      context.stop(concat("has the wrong result ", result), wanted ? "expected a tensor" : "expected a token");
    return wanted;
  };
  if (has(0, !only || *only == "x")) context.expect_like(0, x);
  if (context.has_operand(4)) {
    context.expect_shape(x.shape(), context.operand(4), "the residual");
    context.expect_dtype(wide(x.dtype), context.operand(4).dtype, "the residual");
  }
  if (context.has_operand(2)) context.expect_shape(shapes.weight, context.operand(2), "the weight");
  if (has(1, context.has_operand(2) && (!only || *only == "w")))
    context.expect(1, context.operand(2).dtype, shapes.weight);
}

bool broadcasts(const Shape& angle, const Shape& with) {
  bool fits = angle.size() <= with.size();
  for (size_t d = 0; fits && d < angle.size(); ++d) {
    const int64_t size = angle[angle.size() - 1 - d];
    fits = size == 1 || size == with[with.size() - 1 - d];
  }
  return fits;
}

// Angles broadcast with half of the last dimension; with halves=, cos and sin may be as wide as it.
void rule_rope(RuleContext& context) {
  const Type& x = context.operand(0);
  if (x.dims.empty() || x.dims.back().size % 2 != 0)
    context.stop(concat("turns pairs of ", x), "expected an even last dimension");
  Shape half = x.shape();
  half.back() /= 2;
  const bool is_complex = context.op.operands.size() == 2;
  const bool full = context.flag("halves") && !is_complex && !context.operand(1).dims.empty() &&
                    context.operand(1).dims.back().size == x.dims.back().size;
  context.flag("in_dtype");
  context.flag("sliced");
  context.flag("direct_last");
  for (size_t i = 1; i < context.op.operands.size(); ++i) {
    const Type& angle = context.operand(i);
    if ((angle.dtype == DType::c64) != is_complex)
      context.stop(concat("has an operand ", i, " of ", angle), "expected cos and sin, or complex numbers");
    if (!broadcasts(angle.shape(), full ? x.shape() : half))
      context.stop(concat("has an operand ", i, " of ", angle),
                   concat("expected one that broadcasts with ", full ? "" : "half of ", x));
  }
  context.expect_like(0, x);
}

namespace {

// How long the sequence is of which operand `keys` has the keys, all of them or those of one rank.
int64_t sequence_length(RuleContext& context, size_t keys) {
  const int64_t own = context.tensor(keys, 4).shape()[2];
  return context.op.has_attr("axis") && context.op.has_attr("shift") ? own * context.ranks() : own;
}

// Documents, where the attribute says that operand `index` is these and no mask; operand `query` is [B, H, S, d], the next the keys.
void check_documents(RuleContext& context, size_t index, size_t query) {
  const bool has_documents = context.flag("documents");
  if (context.find("document_tokens")) {
    if (!has_documents) context.stop("has document_tokens=", "expected documents=true beside it");
    if (const int64_t tokens = context.integer("document_tokens"); tokens < 1)
      context.stop(concat("has document_tokens=", tokens), "expected at least 1");
  }
  if (!has_documents) return;
  const Shape q = context.tensor(query, 4).shape(), k = context.tensor(query + 1, 4).shape();
  if (!context.has_operand(index)) context.stop(concat("has no operand ", index), "expected the documents");
  if (!context.flag("is_causal"))
    context.stop("has documents=true without is_causal=true",
                 "expected both: a token attends to earlier ones of its document");
  if (q[2] != k[2] && !context.op.has_attr("axis"))
    context.stop(concat("has ", q[2], " queries and ", k[2], " keys"), "expected as many: documents are of both");
  context.expect_dtype(DType::i64, context.operand(index).dtype, "the documents");
  context.expect_shape({q[0], sequence_length(context, query + 1)}, context.operand(index), "the documents");
}

// Queries of the rank's part of a sequence, where axis= says so. Operands as in check_documents.
void check_part(RuleContext& context, size_t mask, size_t query) {
  const bool balanced = context.flag("balanced");
  const bool of_one_rank = context.op.has_attr("shift");
  if (!context.op.has_attr("axis")) {
    if (balanced || of_one_rank)
      context.stop(balanced ? "has balanced=true" : "has shift=",
                   "expected axis= beside it, over which the queries are cut");
    return;
  }
  const int64_t ranks = context.ranks();
  if (of_one_rank)
    if (const int64_t shift = context.integer("shift"); shift < 0 || shift >= ranks)
      context.stop(concat("has shift=", shift, " over ", ranks, " ranks"), concat("expected 0 to ", ranks - 1));
  if (!context.flag("is_causal"))
    context.stop("has axis= without is_causal=true",
                 "expected both: without a causal mask a part of the queries needs nothing to be said");
  if (context.has_operand(mask) && !context.flag("documents"))
    context.stop("has axis= and a mask", "expected none, or documents=true");
  const int64_t rows = context.tensor(query, 4).shape()[2], length = sequence_length(context, query + 1);
  if (rows == 0 || length % ranks != 0 || length / ranks != rows)
    context.stop(
        concat("has ", rows, " queries and ", context.operand(query + 1).shape()[2], " keys over ", ranks, " ranks"),
        of_one_rank ? "expected as many keys as queries: those of one rank"
                    : "expected as many keys as all ranks have queries together");
  if (balanced && rows % 2 != 0)
    context.stop(concat("has balanced=true and ", rows, " queries"),
                 "expected an even number: a rank has two equal chunks of the sequence");
}

}  // namespace

void rule_sdpa(RuleContext& context) {
  aten_attention(context);
  check_documents(context, 3, 0);
  check_part(context, 3, 0);
}

void rule_sdpa_backward(RuleContext& context) {
  aten_attention_backward(context);
  check_documents(context, 6, 1);
  check_part(context, 6, 1);
}

// %o_a %lse_a %o_b %lse_b
void rule_sdpa_merge(RuleContext& context) {
  const Type &o = context.tensor(0, 4), &lse = context.tensor(1, 3);
  Shape rows = o.shape();
  rows.pop_back();
  context.expect_shape(rows, lse, "lse");
  context.expect_shape(o.shape(), context.operand(2), "the other part");
  context.expect_shape(rows, context.operand(3), "its lse");
  for (const size_t i : {1, 3})
    context.expect_dtype(wide(context.operand(i - 1).dtype), context.operand(i).dtype, "lse");
  context.expect_dtype(lse.dtype, wide(context.result(0).dtype), "lse");
  context.expect(0, context.result(0).dtype, o.shape());
  context.expect(1, lse.dtype, rows);
}

// What the ranks' parts of `own` rows are of, where they do not divide it: each has so many, or fewer.
void check_whole(RuleContext& context, const char* name, int64_t own) {
  const int64_t whole = context.integer(name), ranks = context.ranks();
  if (whole < 0 || ceil_div(whole, ranks) != own)
    context.stop(concat("has ", name, "=", whole, " over ", ranks, " ranks of ", own), "expected as many as they have");
}

// %weight [rows, width] %ids
void rule_embedding(RuleContext& context) {
  if (context.op.has_attr("axis")) context.ranks();
  if (context.op.has_attr("num_weights")) check_whole(context, "num_weights", context.tensor(0, 2).dims[0].size);
  aten_embedding(context);
}

// %grad [ids..., width] %ids num_weights=
void rule_embedding_backward(RuleContext& context) {
  if (!context.op.has_attr("axis")) return aten_embedding_backward(context);
  const int64_t rows = context.integer("num_weights"), ranks = context.ranks();
  if (rows < 0) context.stop(concat("has num_weights=", rows), "expected 0 or more");
  if (context.operand().dims.empty()) context.stop("has a number as gradient", concat("got ", context.operand()));
  Shape expected = context.operand(1).shape();
  expected.push_back(context.operand().dims.back().size);
  context.expect_shape(expected, context.operand(), "the gradient");
  context.expect_result({ceil_div(rows, ranks), expected.back()});
}

// targets are class numbers, one for each row of operand `logits`.
void check_targets(RuleContext& context, size_t logits) {
  const Type& x = context.tensor(logits, 2);
  context.expect_shape({x.dims[0].size}, context.operand(logits + 1), "the targets");
  context.expect_dtype(DType::i64, context.operand(logits + 1).dtype, "the targets");
}

// What the loss of these logits is computed in.
DType loss_dtype(RuleContext& context, const Type& logits) {
  return context.flag("in_dtype") ? logits.dtype : wide(logits.dtype);
}

void rule_cross_entropy(RuleContext& context) {
  check_targets(context, 0);
  const Type& logits = context.operand(0);
  const DType dtype = loss_dtype(context, logits);
  const bool each = context.integer("reduction", 1) == 0;
  context.expect(0, dtype, each ? Shape{logits.dims[0].size} : Shape{});
  context.expect(1, dtype, {});
  context.expect(2, dtype, {logits.dims[0].size});
}

void rule_cross_entropy_backward(RuleContext& context) {
  check_targets(context, 1);
  const Type& logits = context.operand(1);
  context.expect_shape({logits.dims[0].size}, context.operand(4), "lse");
  const bool in_parts = context.op.has_attr("axis");
  if (in_parts) context.ranks();
  if (context.op.has_attr("classes")) check_whole(context, "classes", context.tensor(1, 2).dims[1].size);
  context.expect_dtype(in_parts ? wide(logits.dtype) : loss_dtype(context, logits), context.operand(4).dtype, "lse");
  context.expect_like(0, logits);
}

void rule_cross_entropy_parts(RuleContext& context) {
  check_targets(context, 0);
  context.ranks();
  const Type& logits = context.operand(0);
  if (context.op.has_attr("classes")) check_whole(context, "classes", logits.dims[1].size);
  context.expect(0, wide(logits.dtype), {3, logits.dims[0].size});
}

void rule_cross_entropy_of_parts(RuleContext& context) {
  const Type& parts = context.tensor(0, 2);
  if (parts.dims[0].size < 3 || parts.dims[0].size % 3 != 0)
    context.stop(concat("reads parts of ", parts), "expected 3 rows for each rank");
  const int64_t rows = parts.dims[1].size;
  context.expect_shape({rows}, context.operand(1), "the targets");
  context.expect_dtype(DType::i64, context.operand(1).dtype, "the targets");
  const DType dtype = context.result().dtype;
  context.expect(0, dtype, context.integer("reduction", 1) == 0 ? Shape{rows} : Shape{});
  context.expect(1, dtype, {});
  context.expect(2, parts.dtype, {rows});
}

void rule_dropout(RuleContext& context) {
  context.need_number("keep");
  context.expect_like(0, context.operand(0));
  context.expect(1, DType::i64, {2});
}

void rule_dropout_backward(RuleContext& context) {
  context.need_number("keep");
  context.expect_shape({2}, context.operand(1), "what dropout left");
  context.expect_dtype(DType::i64, context.operand(1).dtype, "what dropout left");
  context.expect_like(0, context.operand(0));
}

}  // namespace sfsdp::ir
