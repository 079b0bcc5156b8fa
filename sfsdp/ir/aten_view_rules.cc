// SPDX-License-Identifier: BSD-3-Clause
// The rules of views, and of what cuts, joins and picks.
#include <algorithm>
#include <limits>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/shape_rules.h"

namespace sfsdp::ir {
namespace {

// Product of sizes that may be any attribute's; stops where one is below 0 or the product above kMaxBytes.
int64_t numel(RuleContext& context, const Shape& shape) {
  Type type = Type::tensor(DType::b1, shape);
  if (!type.fits()) context.stop("has sizes that memory cannot hold", concat("got ", Attr(shape)));
  return type.numel();
}

// The dimension that an attribute names, 0 where it is left out; the operand must have one.
size_t cut_dim(RuleContext& context) {
  const size_t rank = context.operand().dims.size();
  if (rank == 0) context.stop("cuts a number", "expected a tensor with dimensions");
  return context.wrapped(context.integer("dim", 0), rank);
}

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// How many of `size` positions lie from start to end, counted as Python does, at every `step`-th.
int64_t sliced(RuleContext& context, int64_t size, int64_t start, int64_t end) {
  const int64_t step = context.integer("step", 1);
  if (step < 1) context.stop(concat("has step=", step), "expected at least 1");
  const auto inside = [&](int64_t position) {
    return std::clamp<int64_t>(position < 0 ? position + size : position, 0, size);
  };
  const int64_t first = inside(start), last = std::max(inside(end), first);
  return ceil_div(last - first, step);
}

void expect_results(RuleContext& context, int64_t count) {
  if (count != std::ssize(context.op.results()))
    context.stop(concat("has ", context.op.results().size(), " results"), concat("expected ", count));
}

// The pieces that a list of lengths makes of dimension `dim`.
void expect_pieces(RuleContext& context, size_t dim, const Shape& lengths) {
  expect_results(context, std::ssize(lengths));
  for (size_t i = 0; i < lengths.size(); ++i) {
    Shape shape = context.operand().shape();
    shape[dim] = lengths[i];
    context.expect(static_cast<int>(i), context.operand().dtype, shape);
  }
}

Shape without(Shape shape, size_t dim) {
  shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(dim));
  return shape;
}

// With one more dimension, named dim= (0 where it is left out), of this size.
Shape with_dim(RuleContext& context, Shape shape, int64_t size) {
  const size_t dim = context.wrapped(context.integer("dim", 0), shape.size() + 1);
  shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(dim), size);
  return shape;
}

// Operand 1 is indexes.
void expect_integers(RuleContext& context) {
  const DType dtype = context.operand(1).dtype;
  if (dtype != DType::i64 && dtype != DType::i32)
    context.stop(concat("has indexes of ", to_string(dtype)), "expected i64 or i32; insert a cast");
}

}  // namespace

// ---- views ----------------------------------------------------------------------------------------------------------

// size=, of which one entry may be -1
void aten_view(RuleContext& context) {
  Shape size = context.integers("size");
  const int64_t whole = context.operand().numel();
  if (const auto open = std::ranges::find(size, -1); open != size.end()) {
    *open = 1;
    const int64_t rest = numel(context, size);
    *open = rest > 0 ? whole / rest : 0;
  }
  if (numel(context, size) != whole)
    context.stop(concat("has size=", context.op.attrs.at("size")),
                 concat("expected the ", whole, " elements of ", context.operand()));
  context.expect_result(size);
}

void aten_unsqueeze(RuleContext& context) {
  context.integer("dim");  // which must be there
  context.expect_result(with_dim(context, context.operand().shape(), 1));
}

// dim=, one or several; all of size 1 where there is none
void aten_squeeze(RuleContext& context) {
  const auto dims = context.integers_if("dim");
  const Shape shape = context.operand().shape();
  std::vector<bool> named(shape.size(), !dims);
  for (const int64_t dim : dims.value_or(Shape()))
    if (const size_t d = context.wrapped(dim, shape.size()); d < shape.size()) named[d] = true;
  Shape left;
  for (size_t d = 0; d < shape.size(); ++d)
    if (!named[d] || shape[d] != 1) left.push_back(shape[d]);
  context.expect_result(left);
}

// of at most two dimensions, or dim0= and dim1=
void aten_transpose(RuleContext& context) {
  Shape shape = context.operand().shape();
  if (context.op.is("aten.t")) {
    if (shape.size() > 2) context.stop("has an operand of more than 2 dimensions", concat("got ", context.operand()));
    std::ranges::reverse(shape);
  } else if (const size_t a = context.wrapped_dim("dim0"), b = context.wrapped_dim("dim1"); !shape.empty()) {
    std::swap(shape[a], shape[b]);
  }
  context.expect_result(shape);
}

void aten_permute(RuleContext& context) {
  const Shape dims = context.integers("dims"), shape = context.operand().shape();
  std::vector<bool> seen(shape.size());
  Shape permuted;
  for (const int64_t dim : dims) {
    const size_t d = context.wrapped(dim, shape.size());
    if (d >= shape.size() || seen[d]) break;
    seen[d] = true;
    permuted.push_back(shape[d]);
  }
  if (permuted.size() != shape.size() || dims.size() != shape.size())
    context.stop(concat("has dims=", Attr(dims)), concat("expected each of the ", shape.size(), " dimensions once"));
  context.expect_result(permuted);
}

// size=, -1 for what stays
void aten_expand(RuleContext& context) {
  Shape size = context.integers("size");
  const Shape shape = context.operand().shape();
  if (size.size() < shape.size())
    context.stop(concat("has size=", Attr(size)), concat("expected at least the dimensions of ", context.operand()));
  const size_t added = size.size() - shape.size();
  for (size_t d = 0; d < shape.size(); ++d) {
    int64_t& wanted = size[added + d];
    if (wanted == -1) wanted = shape[d];
    if (shape[d] != 1 && wanted != shape[d])
      context.stop(concat("has size=", context.op.attrs.at("size")),
                   concat("expected a dimension of 1 where ", context.operand(), " grows"));
  }
  context.expect_result(size);
}

void aten_select(RuleContext& context) {
  const Shape shape = context.operand().shape();
  const size_t dim = context.wrapped_dim();
  if (shape.empty()) context.stop("selects of a number", "expected a tensor with dimensions");
  const int64_t index = context.integer("index");
  if (index < -shape[dim] || index >= shape[dim])
    context.stop(concat("has index=", index),
                 concat("expected a position of dimension ", dim, " of ", context.operand()));
  context.expect_result(without(shape, dim));
}

void aten_slice(RuleContext& context) {
  Shape shape = context.operand().shape();
  const size_t dim = cut_dim(context);
  constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();
  shape[dim] = sliced(context, shape[dim], context.integer("start", 0), context.integer("end", kEnd));
  context.expect_result(shape);
}

void aten_split(RuleContext& context) {
  const size_t dim = cut_dim(context);
  const int64_t length = context.integer("split_size"), whole = context.operand().dims[dim].size;
  if (length < 0 || (length == 0 && whole > 0)) context.stop(concat("has split_size=", length), "expected at least 1");
  const int64_t count = std::max<int64_t>(length == 0 ? 1 : ceil_div(whole, length), 1);
  expect_results(context, count);
  Shape lengths(static_cast<size_t>(count), length);
  lengths.back() = whole - (count - 1) * length;
  expect_pieces(context, dim, lengths);
}

void aten_split_with_sizes(RuleContext& context) {
  const size_t dim = cut_dim(context);
  const Shape lengths = context.integers("split_sizes");
  int64_t rest = context.operand().dims[dim].size;
  for (const int64_t length : lengths) {
    if (length < 0 || length > rest) rest = -1;
    if (rest < 0) break;
    rest -= length;
  }
  if (rest != 0)
    context.stop(concat("has split_sizes=", Attr(lengths)),
                 concat("expected the sum ", context.operand().dims[dim].size));
  expect_pieces(context, dim, lengths);
}

void aten_unbind(RuleContext& context) {
  const size_t dim = cut_dim(context);
  const Shape shape = context.operand().shape();
  expect_results(context, shape[dim]);
  for (int i = 0; i < shape[dim]; ++i) context.expect(i, context.operand().dtype, without(shape, dim));
}

// size= stride= [storage_offset=]: offsets count from where the operand's memory begins
void aten_as_strided(RuleContext& context) {
  const Shape size = context.integers("size"), stride = context.integers("stride");
  const int64_t offset = context.integer("storage_offset", 0);
  Type reached = Type::tensor(context.operand().dtype, size);
  reached.strides = stride;
  if (stride.size() != size.size() || offset < 0 || offset > kMaxBytes || !reached.fits())
    context.stop(concat("has size=", Attr(size), " stride=", Attr(stride)),
                 "expected one stride per size, none below 0");
  int64_t last = offset;
  for (size_t d = 0; d < size.size(); ++d) last += (size[d] - 1) * stride[d];
  const Type& memory = storage_of(context.op.operands[0])->type();
  if (memory.strides.empty() && reached.numel() > 0 && last >= memory.numel())
    context.stop(concat("reads element ", last), concat("expected one of ", memory));
  context.expect_result(size);
}

// ---- by index -------------------------------------------------------------------------------------------------------

// %weight [rows, width] %indices
void aten_embedding(RuleContext& context) {
  const Type& weight = context.tensor(0, 2);
  expect_integers(context);
  Shape shape = context.operand(1).shape();
  shape.push_back(weight.dims[1].size);
  context.expect_result(shape);
}

// %grad [indices..., width] %indices num_weights=
void aten_embedding_backward(RuleContext& context) {
  expect_integers(context);
  Shape expected = context.operand(1).shape();
  if (context.operand().dims.empty()) context.stop("has a number as gradient", concat("got ", context.operand()));
  expected.push_back(context.operand().dims.back().size);
  context.expect_shape(expected, context.operand(), "the gradient");
  context.expect_result({context.integer("num_weights"), expected.back()});
}

void aten_gather(RuleContext& context) {
  context.wrapped_dim();
  expect_integers(context);
  context.expect_result(context.operand(1).shape());
}

void aten_index_select(RuleContext& context) {
  Shape shape = context.operand().shape();
  const size_t dim = context.wrapped_dim();
  expect_integers(context);
  if (context.operand(1).dims.size() > 1)
    context.stop("has indexes of several dimensions", concat("got ", context.operand(1)));
  if (!shape.empty()) shape[dim] = context.operand(1).numel();
  context.expect_result(shape);
}

void aten_sort(RuleContext& context) {
  context.wrapped(context.integer("dim", -1), context.operand().dims.size());
  context.expect_like(0, context.operand());
  context.expect(1, DType::i64, context.operand().shape());
}

void aten_topk(RuleContext& context) {
  Shape shape = context.operand().shape();
  const size_t dim = context.wrapped(context.integer("dim", -1), shape.size());
  const int64_t k = context.integer("k");
  if (!shape.empty()) {
    if (k < 0 || k > shape[dim]) context.stop(concat("has k=", k), concat("expected at most ", shape[dim]));
    shape[dim] = k;
  }
  context.expect_result(shape);
  context.expect(1, DType::i64, shape);
}

// ---- put together or into larger ones -------------------------------------------------------------------------------

// [%a, ...] dim=; an operand of shape [0] counts for nothing, as LibTorch has it
void aten_cat(RuleContext& context) {
  const auto is_nothing = [](const Type& type) { return type.dims.size() == 1 && type.dims[0].size == 0; };
  std::optional<Shape> whole;
  size_t dim = 0;
  for (size_t i = 0; i < context.op.operands.size(); ++i) {
    const Type& part = context.operand(i);
    if (is_nothing(part)) continue;
    Shape shape = part.shape();
    if (shape.empty()) context.stop("joins a number", "expected tensors with dimensions; use aten.stack");
    if (!whole) {
      dim = context.wrapped(context.integer("dim", 0), shape.size());
      whole = shape;
      continue;
    }
    const int64_t length = dim < shape.size() ? shape[dim] : 0;
    if (dim < shape.size()) shape[dim] = (*whole)[dim];
    if (shape != *whole)
      context.stop(concat("joins shapes that do not fit along dimension ", dim),
                   concat("expected equal sizes elsewhere, got ", context.operand(0), " and ", part));
    (*whole)[dim] += length;
  }
  context.expect(0, std::nullopt, whole.value_or(Shape{0}));
  if (std::ranges::all_of(context.op.operands,
                          [&](const Value* v) { return v->type().dtype == context.operand().dtype; }))
    context.expect_dtype(context.operand().dtype, context.result().dtype, "the result");
}

void aten_stack(RuleContext& context) {
  const Shape shape = context.operand().shape();
  for (size_t i = 1; i < context.op.operands.size(); ++i)
    context.expect_shape(shape, context.operand(i), concat("operand ", i));
  context.expect_result(with_dim(context, shape, std::ssize(context.op.operands)));
}

// %grad input_sizes= dim= index=
void aten_select_backward(RuleContext& context) {
  const Shape shape = context.integers("input_sizes");
  context.expect_result(shape);
  if (shape.empty()) return;
  const size_t dim = context.wrapped(context.integer("dim"), shape.size());
  context.expect_shape(without(shape, dim), context.operand(), "the gradient");
}

// %grad input_sizes= dim= start= end= step=
void aten_slice_backward(RuleContext& context) {
  Shape shape = context.integers("input_sizes");
  context.expect_result(shape);
  numel(context, shape);
  if (shape.empty()) return;
  const size_t dim = context.wrapped(context.integer("dim"), shape.size());
  shape[dim] = sliced(context, shape[dim], context.integer("start"), context.integer("end"));
  context.expect_shape(shape, context.operand(), "the gradient");
}

// pad=: before and after of the last dimension, then of the one before it, ...
void aten_constant_pad(RuleContext& context) {
  const Shape pad = context.integers("pad");
  Shape shape = context.operand().shape();
  if (pad.size() % 2 != 0 || pad.size() / 2 > shape.size())
    context.stop(concat("has pad=", Attr(pad)), "expected two numbers for each of the last dimensions");
  for (size_t i = 0; i < pad.size(); ++i) {
    if (pad[i] < -kMaxBytes || pad[i] > kMaxBytes) context.stop(concat("has pad=", Attr(pad)), "expected sizes");
    shape[shape.size() - 1 - i / 2] += pad[i];
  }
  context.expect_result(shape);
}

void aten_repeat(RuleContext& context) {
  Shape shape = context.integers("repeats");
  const Shape in = context.operand().shape();
  numel(context, shape);
  if (shape.size() < in.size()) context.stop("repeats too few dimensions", concat("got ", context.operand()));
  for (size_t d = 0; d < in.size(); ++d) {
    int64_t& size = shape[shape.size() - in.size() + d];
    size = saturating_product(size, in[d]);
  }
  context.expect_result(shape);
}

}  // namespace sfsdp::ir
