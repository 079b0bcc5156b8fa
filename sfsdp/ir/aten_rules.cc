// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/aten_rules.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "sfsdp/base/check.h"

namespace sfsdp::ir {
namespace aten {
namespace {

const Attr* find(const RuleContext& context, const std::string& key) {
  const auto found = context.op.attrs.find(key);
  const bool given = found != context.op.attrs.end() && !std::holds_alternative<std::monostate>(found->second);
  return given ? &found->second : nullptr;
}

[[noreturn]] void stop_at(RuleContext& context, const std::string& key, std::string_view expected) {
  const Attr* got = find(context, key);
  context.stop(concat("needs ", key, '='), concat("expected ", expected, ", got ", got ? *got : Attr()));
}

}  // namespace

int64_t integer(RuleContext& context, const std::string& key) {
  const Attr* found = find(context, key);
  const auto* number = found ? std::get_if<int64_t>(found) : nullptr;
  if (!number) stop_at(context, key, "an integer");
  return *number;
}

int64_t integer(RuleContext& context, const std::string& key, int64_t fallback) {
  return find(context, key) ? integer(context, key) : fallback;
}

bool flag(RuleContext& context, const std::string& key) {
  const Attr* found = find(context, key);
  if (found && !std::holds_alternative<bool>(*found)) stop_at(context, key, "true or false");
  return found && std::get<bool>(*found);
}

std::optional<Shape> integers_if(RuleContext& context, const std::string& key) {
  const Attr* found = find(context, key);
  if (!found) return std::nullopt;
  if (const auto* number = std::get_if<int64_t>(found)) return Shape{*number};
  const auto* list = std::get_if<Shape>(found);
  if (!list) stop_at(context, key, "a list of integers");
  return *list;
}

Shape integers(RuleContext& context, const std::string& key) {
  auto list = integers_if(context, key);
  if (!list) stop_at(context, key, "a list of integers");
  return *list;
}

DType dtype(RuleContext& context, DType fallback) {
  const Attr* found = find(context, "dtype");
  if (found && !std::holds_alternative<DType>(*found)) stop_at(context, "dtype", "a dtype");
  return found ? std::get<DType>(*found) : fallback;
}

size_t wrapped(RuleContext& context, int64_t dim, size_t rank) {
  const auto count = static_cast<int64_t>(std::max<size_t>(rank, 1));
  if (dim < -count || dim >= count)
    context.stop(concat("names dimension ", dim), concat("expected one of ", rank, ", or counted from the end by -1"));
  return static_cast<size_t>(dim < 0 ? dim + count : dim);
}

const Type& tensor(RuleContext& context, size_t index, size_t rank) {
  const Type& type = context.operand(index);
  if (type.dims.size() != rank)
    context.stop(concat("has an operand ", index, " of ", type.dims.size(), " dimensions"),
                 concat("expected ", rank, ", got ", type));
  return type;
}

bool has_operand(const RuleContext& context, size_t index) {
  return index < context.op.operands.size() && context.op.operands[index] != nullptr;
}

int64_t numel(RuleContext& context, const Shape& shape) {
  int64_t count = 1;
  bool none = false;
  for (const int64_t size : shape) {
    none |= size == 0;
    if (size < 0 || size > kMaxBytes)
      context.stop(concat("has a size of ", size), "expected a size that memory can hold");
    count = std::min(saturating_product(count, std::max<int64_t>(size, 1)), kMaxBytes + 1);
  }
  if (count > kMaxBytes) context.stop("has too many elements", concat("expected at most ", kMaxBytes));
  return none ? 0 : count;
}

Shape broadcast(RuleContext& context, const Shape& a, const Shape& b) {
  const Shape &longer = a.size() < b.size() ? b : a, &shorter = a.size() < b.size() ? a : b;
  Shape shape = longer;
  const size_t skipped = longer.size() - shorter.size();
  for (size_t d = 0; d < shorter.size(); ++d) {
    int64_t& size = shape[skipped + d];
    if (size == 1)
      size = shorter[d];
    else if (shorter[d] != 1 && shorter[d] != size)
      context.stop(
          "has operands that do not broadcast",
          concat("expected equal sizes, or 1, counted from the last dimension; got ", size, " and ", shorter[d]));
  }
  return shape;
}

void expect(RuleContext& context, int result, std::optional<DType> dtype, const Shape& shape) {
  const Type& type = context.result(result);
  const std::string whose = context.op.results().size() == 1 ? "the result" : concat("result ", result);
  if (type.kind == Type::Kind::Token) {
    if (!find(context, "output_mask"))
      context.report(concat("has no tensor as ", whose), "expected a tensor, got token");
    return;
  }
  if (dtype) context.expect_dtype(*dtype, type.dtype, whose);
  context.expect_shape(shape, type, whose);
}

}  // namespace aten

namespace {

using aten::Shape;

// ---- type promotion, c10's table ------------------------------------------------------------------------------------

// Of dtypes of one category; bf16 and f16 meet in f32, u8 and a signed one in the next wider signed one.
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
    if (const auto found = context.op.attrs.find(key); found != context.op.attrs.end())
      if (!std::holds_alternative<std::monostate>(found->second)) promotion.add_number(found->second);
  return promotion.result();
}

Shape broadcast_all(RuleContext& context) {
  Shape shape = context.operand().shape();
  for (size_t i = 1; i < context.op.operands.size(); ++i)
    shape = aten::broadcast(context, shape, context.operand(i).shape());
  return shape;
}

DType float_of(DType dtype) { return category_of(dtype) < 2 ? DType::f32 : dtype; }

bool is_integer(DType dtype) { return category_of(dtype) < 2; }

// ---- reductions -----------------------------------------------------------------------------------------------------

// Without the dimensions dim=, or with size 1 there; without all where it names none.
Shape reduced_shape(RuleContext& context, const Type& type) {
  Shape dims = aten::integers_if(context, "dim").value_or(Shape());
  const size_t rank = type.dims.size();
  std::vector<bool> gone(rank, dims.empty());
  for (const int64_t dim : dims)
    if (const size_t d = aten::wrapped(context, dim, rank); d < rank) gone[d] = true;
  const bool kept = aten::flag(context, "keepdim");
  Shape shape;
  for (size_t d = 0; d < rank; ++d) {
    if (!gone[d]) shape.push_back(type.dims[d].size);
    if (gone[d] && kept) shape.push_back(1);
  }
  return shape;
}

void expect_equal_dtypes(RuleContext& context) {
  for (size_t i = 1; i < context.op.operands.size(); ++i)
    if (context.op.operands[i])
      context.expect_dtype(context.operand().dtype, context.operand(i).dtype, concat("operand ", i));
}

}  // namespace

// ---- elementwise ----------------------------------------------------------------------------------------------------

void aten_promoted(RuleContext& context) { aten::expect(context, 0, promoted(context), broadcast_all(context)); }

void aten_promoted_float(RuleContext& context) {
  aten::expect(context, 0, float_of(promoted(context)), broadcast_all(context));
}

void aten_compared(RuleContext& context) { aten::expect(context, 0, DType::b1, broadcast_all(context)); }

void aten_where(RuleContext& context) { aten::expect(context, 0, promoted(context, 1), broadcast_all(context)); }

void aten_masked_fill(RuleContext& context) {
  aten::expect(context, 0, context.operand().dtype,
               aten::broadcast(context, context.operand(0).shape(), context.operand(1).shape()));
}

void aten_float_of(RuleContext& context) {
  aten::expect(context, 0, float_of(context.operand().dtype), context.operand().shape());
}

void aten_as_first(RuleContext& context) {
  aten::expect(context, 0, context.operand().dtype, context.operand().shape());
}

void aten_like(RuleContext& context) {
  aten::expect(context, 0, aten::dtype(context, context.operand().dtype), context.operand().shape());
}

void aten_sized(RuleContext& context) {
  const auto value = context.op.attrs.find("fill_value");
  DType dtype = DType::f32;
  if (value != context.op.attrs.end() && std::holds_alternative<int64_t>(value->second)) dtype = DType::i64;
  if (value != context.op.attrs.end() && std::holds_alternative<bool>(value->second)) dtype = DType::b1;
  aten::expect(context, 0, aten::dtype(context, dtype), aten::integers(context, "size"));
}

void aten_arange(RuleContext& context) {
  const auto number = [&](const char* key, double fallback) {
    const auto found = context.op.attrs.find(key);
    if (found == context.op.attrs.end()) return std::pair{fallback, true};
    if (const auto* whole = std::get_if<int64_t>(&found->second)) return std::pair{static_cast<double>(*whole), true};
    const auto* real = std::get_if<double>(&found->second);
    if (!real) context.stop(concat("needs ", key, '='), "expected a number");
    return std::pair{*real, false};
  };
  const auto [start, whole_start] = number("start", 0);
  const auto [end, whole_end] = number("end", 0);
  const auto [step, whole_step] = number("step", 1);
  const double length = std::ceil((end - start) / step);
  if (!(length >= 0 && length <= 0x1p53))  // what a double counts exactly
    context.stop(concat("counts from ", start, " to ", end, " by ", step), "expected a step that leads there");
  const bool whole = whole_start && whole_end && whole_step;
  aten::expect(context, 0, aten::dtype(context, whole ? DType::i64 : DType::f32), {static_cast<int64_t>(length)});
}

void aten_dropout(RuleContext& context) {
  const Shape shape = context.operand().shape();
  aten::expect(context, 0, context.operand().dtype, shape);
  aten::expect(context, 1, DType::b1, shape);
}

// ---- products -------------------------------------------------------------------------------------------------------

namespace {

// [batch...] m k by [batch...] k n, operands `first` and the one after it.
Shape product_of(RuleContext& context, size_t first, size_t rank) {
  const Shape a = aten::tensor(context, first, rank).shape(), b = aten::tensor(context, first + 1, rank).shape();
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
  const Shape shape = product_of(context, 0, context.op.is("aten.bmm") ? 3 : 2);
  aten::expect(context, 0, context.operand().dtype, shape);
}

void aten_add_product(RuleContext& context) {
  expect_equal_dtypes(context);
  const Shape shape = product_of(context, 1, context.op.is("aten.baddbmm") ? 3 : 2);
  if (aten::broadcast(context, context.operand().shape(), shape) != shape)
    context.stop("adds what is larger than the product", concat("got ", context.operand()));
  aten::expect(context, 0, context.operand().dtype, shape);
}

namespace {

// A list of one entry stands for all dimensions.
int64_t entry(RuleContext& context, const char* key, size_t d, size_t count, int64_t fallback) {
  const Shape list = aten::integers_if(context, key).value_or(Shape{fallback});
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
  const Shape in = context.operand().shape(), weight = aten::tensor(context, 1, rank).shape();
  const int64_t groups = aten::integer(context, "groups");
  if (groups < 1 || groups > kMaxBytes) context.stop(concat("has groups=", groups), "expected at least 1");
  const bool transposed = aten::flag(context, "transposed");
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
  aten::expect(context, 0, context.operand().dtype, out);
}

void aten_convolution_backward(RuleContext& context) {
  aten::expect(context, 0, context.operand(1).dtype, context.operand(1).shape());
  aten::expect(context, 1, context.operand(2).dtype, context.operand(2).shape());
  if (context.operand(0).dims.size() < 2) context.stop("has too few dimensions", concat("got ", context.operand()));
  aten::expect(context, 2, context.operand(0).dtype, {context.operand(0).dims[1].size});
}

// %query %key %value [%mask], all [batch, heads, length, width]; also the logarithms of the softmax's sums.
void aten_attention(RuleContext& context) {
  const Shape q = aten::tensor(context, 0, 4).shape(), k = aten::tensor(context, 1, 4).shape(),
              v = aten::tensor(context, 2, 4).shape();
  const bool grouped =
      k[1] > 0 ? q[1] % k[1] == 0 : q[1] == k[1];  // heads of keys and values may serve several queries
  if (q[0] != k[0] || !grouped || q[3] != k[3] || k != v)
    context.stop("attends to shapes that do not fit",
                 concat("got ", context.operand(0), ", ", context.operand(1), " and ", context.operand(2)));
  const DType dtype = context.operand().dtype;
  aten::flag(context, "is_causal");
  for (const size_t i : {1, 2}) context.expect_dtype(dtype, context.operand(i).dtype, concat("operand ", i));
  aten::expect(context, 0, dtype, q);
  aten::expect(context, 1, dtype == DType::f64 ? DType::f64 : DType::f32, {q[0], q[1], q[2]});
}

// %grad %query %key %value %out %logsumexp [%mask]
void aten_attention_backward(RuleContext& context) {
  for (size_t i = 1; i < 6; ++i)
    if (!aten::has_operand(context, i)) context.stop(concat("lacks operand ", i), "expected a value, got none");
  for (size_t i = 0; i < 5; ++i) aten::tensor(context, i, 4);
  aten::flag(context, "is_causal");
  for (const size_t i : {0, 4})
    context.expect_shape(context.operand(1).shape(), context.operand(i), concat("operand ", i));
  for (int i = 0; i < 3; ++i) {
    const Type& given = context.operand(static_cast<size_t>(i) + 1);
    aten::expect(context, i, given.dtype, given.shape());
  }
}

// ---- reductions -----------------------------------------------------------------------------------------------------

void aten_sum(RuleContext& context) {
  const DType own = context.operand().dtype;
  aten::expect(context, 0, aten::dtype(context, is_integer(own) ? DType::i64 : own),
               reduced_shape(context, context.operand()));
}

void aten_reduced(RuleContext& context) {
  aten::expect(context, 0, aten::dtype(context, context.operand().dtype), reduced_shape(context, context.operand()));
}

void aten_index_reduced(RuleContext& context) {
  aten::expect(context, 0, DType::i64, reduced_shape(context, context.operand()));
}

void aten_cumsum(RuleContext& context) {
  aten::wrapped(context, aten::integer(context, "dim"), context.operand().dims.size());
  const DType own = context.operand().dtype;
  aten::expect(context, 0, aten::dtype(context, is_integer(own) ? DType::i64 : own), context.operand().shape());
}

// ---- softmax, losses, norms -----------------------------------------------------------------------------------------

void aten_softmax(RuleContext& context) {
  aten::wrapped(context, aten::integer(context, "dim"), context.operand().dims.size());
  aten::expect(context, 0, aten::flag(context, "half_to_float") ? DType::f32 : context.operand().dtype,
               context.operand().shape());
}

// %grad %output
void aten_softmax_backward(RuleContext& context) {
  aten::wrapped(context, aten::integer(context, "dim"), context.operand().dims.size());
  context.expect_shape(context.operand(0).shape(), context.operand(1), "operand 1");
  const auto input = context.op.attrs.find("input_dtype");
  const auto* dtype = input == context.op.attrs.end() ? nullptr : std::get_if<DType>(&input->second);
  aten::expect(context, 0, dtype ? *dtype : context.operand().dtype, context.operand().shape());
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
  if (!aten::has_operand(context, 1)) context.stop("lacks operand 1", "expected the targets, got none");
  const Type& log_p = context.operand(0);
  check_targets(context, log_p, context.operand(1));
  const bool each = aten::integer(context, "reduction") == 0 && log_p.dims.size() == 2;
  aten::expect(context, 0, log_p.dtype, each ? Shape{log_p.dims[0].size} : Shape());
  aten::expect(context, 1, log_p.dtype, {});
}

// %grad %log_p %targets [%weight] %count
void aten_nll_loss_backward(RuleContext& context) {
  for (const size_t i : {1, 2, 4})
    if (!aten::has_operand(context, i)) context.stop(concat("lacks operand ", i), "expected a value, got none");
  check_targets(context, context.operand(1), context.operand(2));
  aten::expect(context, 0, context.operand(1).dtype, context.operand(1).shape());
}

namespace {

void check_parameters(RuleContext& context, size_t first, const Shape& expected) {
  for (size_t i = first; i < first + 2; ++i)
    if (aten::has_operand(context, i)) context.expect_shape(expected, context.operand(i), concat("operand ", i));
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
  const Shape shape = context.operand().shape(), normalized = aten::integers(context, "normalized_shape");
  const size_t outer = outer_dims(context, shape, normalized);
  check_parameters(context, 1, normalized);
  Shape rows = shape;
  std::fill(rows.begin() + static_cast<std::ptrdiff_t>(outer), rows.end(), 1);
  aten::expect(context, 0, context.operand().dtype, shape);
  for (const int i : {1, 2}) aten::expect(context, i, std::nullopt, rows);
}

// %grad %input %mean %rstd [%weight] [%bias]
void aten_layer_norm_backward(RuleContext& context) {
  for (const size_t i : {1, 2, 3})
    if (!aten::has_operand(context, i)) context.stop(concat("lacks operand ", i), "expected a value, got none");
  const Type& input = context.operand(1);
  const Shape normalized = aten::integers(context, "normalized_shape");
  outer_dims(context, input.shape(), normalized);
  check_parameters(context, 4, normalized);
  context.expect_shape(input.shape(), context.operand(0), "the gradient");
  aten::expect(context, 0, input.dtype, input.shape());
  for (const int i : {1, 2}) aten::expect(context, i, std::nullopt, normalized);
}

// %input [%weight] [%bias] N= C= HxW= group=
void aten_group_norm(RuleContext& context) {
  const int64_t channels = aten::integer(context, "C");
  check_parameters(context, 1, {channels});
  aten::expect(context, 0, context.operand().dtype, context.operand().shape());
  for (const int i : {1, 2})
    aten::expect(context, i, std::nullopt, {aten::integer(context, "N"), aten::integer(context, "group")});
}

}  // namespace sfsdp::ir
