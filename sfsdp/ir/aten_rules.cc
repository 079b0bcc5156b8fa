// SPDX-License-Identifier: BSD-3-Clause
// The rules named in atenset.def: which dtype and shape each result has. Attributes are the schema's arguments, left out
// at their defaults. Strides are LibTorch's choice and not checked, nor is what a kernel alone can know.
#include <algorithm>
#include <array>
#include <cmath>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/shape_rules.h"

namespace sfsdp::ir {
namespace {

// ---- type promotion, c10's table ------------------------------------------------------------------------------------

// Both dtypes are of one category; bf16 and f16 meet in f32, u8 and a signed one in the next wider signed one.
int category_of(DType dtype) {
  if (dtype == DType::c64) return 3;
  if (is_floating(dtype)) return 2;
  return dtype == DType::b1 ? 0 : 1;
}

DType promote(DType a, DType b) {
  if (a == b) return a;
  const int category = category_of(a);
  if (category != category_of(b)) return category < category_of(b) ? b : a;
  if (category == 1) {
    const bool is_unsigned = a == DType::u8 || b == DType::u8;
    if (is_unsigned && (a == DType::i8 || b == DType::i8)) return DType::i16;
    return size_in_bytes(a) > size_in_bytes(b) || (size_in_bytes(a) == size_in_bytes(b) && b == DType::u8) ? a : b;
  }
  if (size_in_bytes(a) == size_in_bytes(b)) return DType::f32;
  return size_in_bytes(a) > size_in_bytes(b) ? a : b;
}

// Tensors with dimensions come first, then those without, then numbers: a later kind counts by its category alone.
class Promotion {
 public:
  void add(const Type& type, bool is_number) {
    // A number of the model's code has the default float, not its own 64 bits.
    const DType dtype = is_number && is_floating(type.dtype) ? DType::f32 : type.dtype;
    std::optional<DType>& kind = kinds_[is_number ? 2 : type.dims.empty() ? 1 : 0];
    kind = kind ? promote(*kind, dtype) : dtype;
  }
  void add_number(const Attr& attr) {
    const DType dtype = std::holds_alternative<double>(attr) ? DType::f64
                        : std::holds_alternative<bool>(attr) ? DType::b1
                                                             : DType::i64;
    add(Type::tensor(dtype, {}), true);
  }
  DType result() const {
    std::optional<DType> dtype;
    for (const auto& kind : kinds_) {
      if (!kind) continue;
      if (!dtype || category_of(*kind) > category_of(*dtype)) dtype = kind;
    }
    return dtype.value_or(DType::f32);
  }

 private:
  std::array<std::optional<DType>, 3> kinds_;
};

DType promoted(RuleContext& context, size_t first = 0) {
  Promotion promotion;
  for (size_t i = first; i < context.op.operands.size(); ++i)
    promotion.add(context.operand(i), context.op.operands[i]->producer()->is("scalar"));
  for (const char* key : {"other", "self", "exponent", "min", "max"})
    if (const Attr* number = context.find(key)) promotion.add_number(*number);
  return promotion.result();
}

// NumPy's broadcasting of two shapes.
Shape broadcast(RuleContext& context, Shape longer, Shape shorter) {
  if (longer.size() < shorter.size()) std::swap(longer, shorter);
  const size_t skipped = longer.size() - shorter.size();
  for (size_t d = 0; d < shorter.size(); ++d) {
    int64_t& size = longer[skipped + d];
    if (size != 1 && shorter[d] != 1 && shorter[d] != size)
      context.stop(
          "has operands that do not broadcast",
          concat("expected equal sizes, or 1, counted from the last dimension; got ", size, " and ", shorter[d]));
    if (size == 1) size = shorter[d];
  }
  return longer;
}

Shape broadcast_all(RuleContext& context, size_t operands) {
  Shape shape = context.operand().shape();
  for (size_t i = 1; i < operands; ++i) shape = broadcast(context, shape, context.operand(i).shape());
  return shape;
}
Shape broadcast_all(RuleContext& context) { return broadcast_all(context, context.op.operands.size()); }

DType float_of(DType dtype) { return category_of(dtype) < 2 ? DType::f32 : dtype; }

// What a sum is made in.
DType sum_of(DType dtype) { return category_of(dtype) < 2 ? DType::i64 : dtype; }

// ---- reductions -----------------------------------------------------------------------------------------------------

// Operand 0 without the dimensions dim=, or with size 1 there; without all where it names none.
Shape reduced_shape(RuleContext& context) {
  const Shape in = context.operand().shape(), dims = context.integers_if("dim").value_or(Shape());
  std::vector<bool> gone(in.size(), dims.empty());
  for (const int64_t dim : dims)
    if (const size_t d = context.wrapped(dim, in.size()); d < in.size()) gone[d] = true;
  const bool kept = context.flag("keepdim");
  Shape shape;
  for (size_t d = 0; d < in.size(); ++d)
    if (kept || !gone[d]) shape.push_back(gone[d] ? 1 : in[d]);
  return shape;
}

void expect_equal_dtypes(RuleContext& context) {
  for (size_t i = 1; i < context.op.operands.size(); ++i)
    if (context.op.operands[i])
      context.expect_dtype(context.operand().dtype, context.operand(i).dtype, concat("operand ", i));
}

}  // namespace

// ---- elementwise ----------------------------------------------------------------------------------------------------

// Operands and numbers broadcast, the dtype that all promote to.
void aten_promoted(RuleContext& context) { context.expect(0, promoted(context), broadcast_all(context)); }

// The same, f32 where that were no float.
void aten_promoted_float(RuleContext& context) {
  context.expect(0, float_of(promoted(context)), broadcast_all(context));
}

void aten_compared(RuleContext& context) { context.expect(0, DType::b1, broadcast_all(context)); }

void aten_where(RuleContext& context) { context.expect(0, promoted(context, 1), broadcast_all(context)); }

void aten_masked_fill(RuleContext& context) { context.expect_result(broadcast_all(context, 2)); }

void aten_float_of(RuleContext& context) {
  context.expect(0, float_of(context.operand().dtype), context.operand().shape());
}

void aten_as_first(RuleContext& context) { context.expect_like(0, context.operand()); }

// Dimensions that are none would count as untouched.
void aten_flip(RuleContext& context) {
  for (const int64_t dim : context.integers_if("dims").value_or(Shape()))
    context.wrapped(dim, context.operand().dims.size());
  context.expect_like(0, context.operand());
}

void aten_like(RuleContext& context) {
  context.expect(0, context.dtype(context.operand().dtype), context.operand().shape());
}

void aten_sized(RuleContext& context) {
  const DType dtype = context.op.find_attr<int64_t>("fill_value") ? DType::i64
                      : context.op.find_attr<bool>("fill_value")  ? DType::b1
                                                                  : DType::f32;
  context.expect(0, context.dtype(dtype), context.integers("size"));
}

void aten_arange(RuleContext& context) {
  bool whole = true;
  const auto number = [&](const char* key, double fallback) {
    if (!context.op.has_attr(key)) return fallback;
    if (const auto* integer = context.op.find_attr<int64_t>(key)) return static_cast<double>(*integer);
    const auto* real = context.op.find_attr<double>(key);
    if (!real) context.stop(concat("needs ", key, '='), "expected a number");
    whole = false;
    return *real;
  };
  const double start = number("start", 0), end = number("end", 0), step = number("step", 1);
  const double length = std::ceil((end - start) / step);
  if (!(length >= 0 && length <= 0x1p53))  // what a double counts exactly
    context.stop(concat("counts from ", start, " to ", end, " by ", step), "expected a step that leads there");
  context.expect(0, context.dtype(whole ? DType::i64 : DType::f32), {static_cast<int64_t>(length)});
}

void aten_dropout(RuleContext& context) {
  aten_as_first(context);
  context.expect(1, DType::b1, context.operand().shape());
}

// ---- products -------------------------------------------------------------------------------------------------------

namespace {

// [batch...] m k by [batch...] k n, operands `first` and the one after it.
Shape product_of(RuleContext& context, size_t first, size_t rank) {
  const Shape a = context.tensor(first, rank).shape(), b = context.tensor(first + 1, rank).shape();
  if (a[rank - 1] != b[rank - 2] || !std::equal(a.begin(), a.end() - 2, b.begin()))
    context.stop("multiplies shapes that do not fit",
                 concat("expected ", rank == 3 ? "b m k and b k n" : "m k and k n", ", got ", context.operand(first),
                        " and ", context.operand(first + 1)));
  Shape shape = a;
  shape.back() = b.back();
  return shape;
}

}  // namespace

void aten_product(RuleContext& context) {
  expect_equal_dtypes(context);
  context.expect_result(product_of(context, 0, context.op.is("aten.bmm") ? 3 : 2));
}

void aten_add_product(RuleContext& context) {
  expect_equal_dtypes(context);
  const Shape shape = product_of(context, 1, context.op.is("aten.baddbmm") ? 3 : 2);
  if (broadcast(context, context.operand().shape(), shape) != shape)
    context.stop("adds what is larger than the product", concat("got ", context.operand()));
  context.expect_result(shape);
}

// Offsets end groups of the first operand's rows, each with its matrix of the second, or of the depth of both.
void aten_grouped_product(RuleContext& context) {
  const Type& a = context.operand(0);
  const Type& b = context.operand(1);
  const Type& ends = context.operand(2);
  if (a.dims.size() != 2 || b.dims.size() < 2 || b.dims.size() > 3 || a.dtype != b.dtype)
    context.stop("multiplies other than a matrix by a matrix or a stack of them, of one dtype",
                 concat("got ", a, " and ", b));
  if (ends.dtype != DType::i32 || ends.dims.size() != 1)
    context.stop("has other offsets than one row of i32", concat("got ", ends));
  const Shape left = a.shape(), right = b.shape();
  if (left[1] != right[right.size() - 2])
    context.stop("sums over dimensions of different sizes", concat("got ", a, " and ", b));
  const int64_t groups = ends.shape()[0];
  if (right.size() == 2) return context.expect_result({groups, left[0], right[1]});
  if (right[0] != groups) context.stop("has as many offsets as matrices", concat("got ", ends, " and ", b));
  context.expect_result({left[0], right[2]});
}

namespace {

// A list of one entry stands for all dimensions.
int64_t entry(RuleContext& context, const char* key, size_t d, size_t count, int64_t fallback) {
  const Shape list = context.integers_if(key).value_or(Shape{fallback});
  if (list.size() != 1 && list.size() != count)
    context.stop(concat("has ", list.size(), " entries in ", key, '='), concat("expected ", count));
  const int64_t value = list[list.size() == 1 ? 0 : d];
  constexpr int64_t kMost = int64_t{1} << 30;  // so that what is made of them fits
  if (value < 0 || value > kMost) context.stop(concat("has ", key, '=', value), concat("expected 0 to ", kMost));
  return value;
}

}  // namespace

void aten_convolution(RuleContext& context) {
  const size_t rank = context.operand().dims.size();
  if (rank < 3)
    context.stop("convolves too few dimensions", concat("expected [batch, channels, ...], got ", context.operand()));
  const Shape in = context.operand().shape(), weight = context.tensor(1, rank).shape();
  const int64_t groups = context.integer("groups");
  if (groups < 1 || groups > kMaxBytes) context.stop(concat("has groups=", groups), "expected at least 1");
  const bool transposed = context.flag("transposed");
  const int64_t channels = transposed ? in[1] : saturating_product(weight[1], groups);
  if (channels != in[1] || (transposed && weight[0] != in[1]))
    context.stop("has a weight that does not fit its input",
                 concat("got ", context.operand(), " and ", context.operand(1), " in ", groups, " groups"));
  Shape out = {in[0], transposed ? saturating_product(weight[1], groups) : weight[0]};
  for (size_t d = 2; d < rank; ++d) {
    const size_t spatial = rank - 2, at = d - 2;
    const int64_t stride = std::max<int64_t>(entry(context, "stride", at, spatial, 1), 1);
    const int64_t padding = entry(context, "padding", at, spatial, 0);
    const int64_t reach =
        saturating_product(entry(context, "dilation", at, spatial, 1), std::max<int64_t>(weight[d] - 1, 0));
    if (reach > kMaxBytes) context.stop("has a kernel that reaches too far", concat("got ", reach));
    if (transposed)
      out.push_back(saturating_product(std::max<int64_t>(in[d] - 1, 0), stride) - 2 * padding + reach +
                    entry(context, "output_padding", at, spatial, 0) + 1);
    else
      out.push_back((in[d] + 2 * padding - reach - 1) / stride + 1);
  }
  expect_equal_dtypes(context);
  context.expect_result(out);
}

void aten_convolution_backward(RuleContext& context) {
  context.expect_like(0, context.operand(1));
  context.expect_like(1, context.operand(2));
  if (context.operand(0).dims.size() < 2) context.stop("has too few dimensions", concat("got ", context.operand()));
  context.expect(2, context.operand(0).dtype, {context.operand(0).dims[1].size});
}

// %query %key %value [%mask], all [batch, heads, length, width]; also the logarithms of the softmax's sums.
void aten_attention(RuleContext& context) {
  const Shape q = context.tensor(0, 4).shape(), k = context.tensor(1, 4).shape(), v = context.tensor(2, 4).shape();
  const bool grouped =
      k[1] > 0 ? q[1] % k[1] == 0 : q[1] == k[1];  // heads of keys and values may serve several queries
  if (q[0] != k[0] || !grouped || q[3] != k[3] || k != v)
    context.stop("attends to shapes that do not fit",
                 concat("got ", context.operand(0), ", ", context.operand(1), " and ", context.operand(2)));
  const DType dtype = context.operand().dtype;
  context.flag("is_causal");
  for (const size_t i : {1, 2}) context.expect_dtype(dtype, context.operand(i).dtype, concat("operand ", i));
  context.expect(0, dtype, q);
  context.expect(1, dtype == DType::f64 ? DType::f64 : DType::f32, {q[0], q[1], q[2]});
}

// %grad %query %key %value %out %logsumexp [%mask]
void aten_attention_backward(RuleContext& context) {
  context.need_operands({1, 2, 3, 4, 5});
  for (size_t i = 0; i < 5; ++i) context.tensor(i, 4);
  context.flag("is_causal");
  for (const size_t i : {0, 4})
    context.expect_shape(context.operand(1).shape(), context.operand(i), concat("operand ", i));
  for (int i = 0; i < 3; ++i) context.expect_like(i, context.operand(static_cast<size_t>(i) + 1));
}

// ---- reductions -----------------------------------------------------------------------------------------------------

void aten_sum(RuleContext& context) {
  context.expect(0, context.dtype(sum_of(context.operand().dtype)), reduced_shape(context));
}

void aten_reduced(RuleContext& context) {
  context.expect(0, context.dtype(context.operand().dtype), reduced_shape(context));
}

void aten_index_reduced(RuleContext& context) { context.expect(0, DType::i64, reduced_shape(context)); }

void aten_cumsum(RuleContext& context) {
  context.wrapped_dim();
  context.expect(0, context.dtype(sum_of(context.operand().dtype)), context.operand().shape());
}

// ---- softmax, losses, norms -----------------------------------------------------------------------------------------

void aten_softmax(RuleContext& context) {
  context.wrapped_dim();
  context.expect(0, context.flag("half_to_float") ? DType::f32 : context.operand().dtype, context.operand().shape());
}

// %grad %output
void aten_softmax_backward(RuleContext& context) {
  context.wrapped_dim();
  context.expect_shape(context.operand(0).shape(), context.operand(1), "operand 1");
  context.expect(0, context.dtype(context.operand().dtype, "input_dtype"), context.operand().shape());
}

namespace {

// Log-probabilities [tokens, classes], or of one token [classes], and their targets.
void check_targets(RuleContext& context, const Type& log_p, const Type& targets) {
  const size_t rank = log_p.dims.size();
  const Shape expected = rank == 2 ? Shape{log_p.dims[0].size} : Shape();
  if (rank != 1 && rank != 2) context.stop("has no [tokens, classes]", concat("got ", log_p));
  context.expect_shape(expected, targets, "the targets");
}

}  // namespace

// %log_p %targets [%weight]
void aten_nll_loss(RuleContext& context) {
  context.need_operands({1});
  const Type& log_p = context.operand(0);
  check_targets(context, log_p, context.operand(1));
  const bool each = context.integer("reduction") == 0 && log_p.dims.size() == 2;
  context.expect(0, log_p.dtype, each ? Shape{log_p.dims[0].size} : Shape());
  context.expect(1, log_p.dtype, {});
}

// %grad %log_p %targets [%weight] %count
void aten_nll_loss_backward(RuleContext& context) {
  context.need_operands({1, 2, 4});
  check_targets(context, context.operand(1), context.operand(2));
  context.expect_like(0, context.operand(1));
}

namespace {

void check_parameters(RuleContext& context, size_t first, const Shape& expected) {
  for (size_t i = first; i < first + 2; ++i)
    if (context.has_operand(i)) context.expect_shape(expected, context.operand(i), concat("operand ", i));
}

// How many dimensions come before those that are normalised, which are the last ones.
size_t outer_dims(RuleContext& context, const Shape& input, const Shape& normalized) {
  if (normalized.empty() || normalized.size() > input.size() ||
      !std::equal(normalized.rbegin(), normalized.rend(), input.rbegin()))
    context.stop(concat("has normalized_shape=", Attr(normalized)), "expected the last sizes of its input");
  return input.size() - normalized.size();
}

}  // namespace

// %input [%weight] [%bias]: also the mean and 1 / deviation of each row, in the input's dtype or the parameters'
void aten_layer_norm(RuleContext& context) {
  const Shape shape = context.operand().shape(), normalized = context.integers("normalized_shape");
  const size_t outer = outer_dims(context, shape, normalized);
  check_parameters(context, 1, normalized);
  Shape rows = shape;
  std::fill(rows.begin() + static_cast<std::ptrdiff_t>(outer), rows.end(), 1);
  context.expect_result(shape);
  for (const int i : {1, 2}) context.expect(i, std::nullopt, rows);
}

// %grad %input %mean %rstd [%weight] [%bias]
void aten_layer_norm_backward(RuleContext& context) {
  context.need_operands({1, 2, 3});
  const Type& input = context.operand(1);
  const Shape normalized = context.integers("normalized_shape");
  outer_dims(context, input.shape(), normalized);
  check_parameters(context, 4, normalized);
  context.expect_shape(input.shape(), context.operand(0), "the gradient");
  context.expect_like(0, input);
  for (const int i : {1, 2}) context.expect(i, std::nullopt, normalized);
}

// %input [%weight] [%bias] N= C= HxW= group=
void aten_group_norm(RuleContext& context) {
  const int64_t channels = context.integer("C");
  check_parameters(context, 1, {channels});
  context.expect_like(0, context.operand());
  for (const int i : {1, 2}) context.expect(i, std::nullopt, {context.integer("N"), context.integer("group")});
}

}  // namespace sfsdp::ir
