// SPDX-License-Identifier: BSD-3-Clause
// What canonical ops compute, from their formulas, not from the ops of LibTorch that they stand for.
#include "sfsdp/testing/interp/canonical_kernels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/testing/interp/part_kernels.h"

namespace sfsdp::ir::interp {
namespace {

using Arrays = std::vector<Array>;

size_t width_of(const Array& a) { return static_cast<size_t>(a.shape.back()); }
size_t rows_of(const Array& a) { return width_of(a) == 0 ? 0 : a.data.size() / width_of(a); }

// out[i, j] = Σ_k a(i, k) · b(k, j)
template <class A, class B>
Array product(const KernelContext& c, size_t rows, size_t columns, size_t inner, A a, B b) {
  Array out = Array::zeros(c.in().dtype, c.op.result()->type().shape());
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j < columns; ++j)
      for (size_t k = 0; k < inner; ++k) out.data[i * columns + j] += a(i, k) * b(k, j);
  return out;
}

Arrays linear(const KernelContext& c) {
  const Array &x = c.in(0), &w = c.in(1);
  const size_t k = width_of(x);
  Array y = product(
      c, rows_of(x), rows_of(w), k, [&](size_t i, size_t m) { return x.data[i * k + m]; },
      [&](size_t m, size_t j) { return w.data[j * k + m]; });
  if (c.operands.size() > 2)
    for (size_t i = 0; i < y.data.size(); ++i) y.data[i] += c.in(2).data[i % width_of(y)];
  return {y};
}

Arrays linear_dx(const KernelContext& c) {
  const Array &g = c.in(0), &w = c.in(1);
  const size_t n = width_of(g), k = width_of(w);
  return {product(
      c, rows_of(g), k, n, [&](size_t i, size_t m) { return g.data[i * n + m]; },
      [&](size_t m, size_t j) { return w.data[m * k + j]; })};
}

Arrays linear_dw(const KernelContext& c) {
  const Array &g = c.in(0), &x = c.in(1);
  const size_t n = width_of(g), k = width_of(x);
  return {product(
      c, n, k, rows_of(g), [&](size_t i, size_t m) { return g.data[m * n + i]; },
      [&](size_t m, size_t j) { return x.data[m * k + j]; })};
}

// Columns [begin, begin + width) of the product of rows x [r, k] with w [n, k].
Array columns_of_linear(const Array& x, const Array& w, size_t begin, const Type& type) {
  const size_t k = width_of(x), width = static_cast<size_t>(type.dims.back().size);
  Array out = Array::zeros(x.dtype, type.shape());
  for (size_t i = 0; i < rows_of(x); ++i)
    for (size_t j = 0; j < width; ++j)
      for (size_t m = 0; m < k; ++m) out.data[i * width + j] += x.data[i * k + m] * w.data[(begin + j) * k + m];
  return out;
}

Arrays joined_linear(const KernelContext& c) {
  Arrays results;
  size_t begin = 0;
  for (const auto& result : c.op.results()) {
    results.push_back(columns_of_linear(c.in(0), c.in(1), begin, result->type()));
    begin += width_of(results.back());
  }
  return results;
}

Arrays joined_linear_dx(const KernelContext& c) {
  const Array& w = *c.operands.back();
  const size_t k = width_of(w);
  Array out = Array::zeros(w.dtype, c.op.result()->type().shape());
  size_t begin = 0;
  for (size_t i = 0; i + 1 < c.operands.size(); ++i) {
    const Array& g = c.in(i);
    const size_t n = width_of(g);
    for (size_t r = 0; r < rows_of(g); ++r)
      for (size_t m = 0; m < n; ++m)
        for (size_t j = 0; j < k; ++j) out.data[r * k + j] += g.data[r * n + m] * w.data[(begin + m) * k + j];
    begin += n;
  }
  return {out};
}

Arrays joined_linear_dw(const KernelContext& c) {
  const Array& x = *c.operands.back();
  const size_t k = width_of(x);
  Arrays results;
  for (size_t i = 0; i + 1 < c.operands.size(); ++i) {
    const Array& g = c.in(i);
    const size_t n = width_of(g);
    Array& out = results.emplace_back(Array::zeros(x.dtype, c.op.result(static_cast<int>(i))->type().shape()));
    for (size_t r = 0; r < rows_of(x); ++r)
      for (size_t m = 0; m < n; ++m)
        for (size_t j = 0; j < k; ++j) out.data[m * k + j] += g.data[r * n + m] * x.data[r * k + j];
  }
  return results;
}

Arrays matmul(const KernelContext& c) {
  const Array &a = c.in(0), &b = c.in(1);
  const size_t k = width_of(a), n = width_of(b);
  const size_t batch = b.shape.size() == 3 ? static_cast<size_t>(b.shape[0]) : 1, rows = rows_of(a) / batch;
  Array out = Array::zeros(a.dtype, c.op.result()->type().shape());
  for (size_t r = 0; r < batch * rows; ++r)
    for (size_t j = 0; j < n; ++j) {
      for (size_t m = 0; m < k; ++m) out.data[r * n + j] += a.data[r * k + m] * b.data[(r / rows * k + m) * n + j];
      if (c.operands.size() > 2) out.data[r * n + j] += c.in(2).data[j];
    }
  return {out};
}

// How many ids or classes there are, where each rank's tensors have `count`; and how many of these are the rank's.
int64_t whole_of(const KernelContext& c, int64_t count) {
  return c.op.attr_or("classes", c.op.attr_or("num_weights", count * c.axis_ranks));
}
size_t counted_of(const KernelContext& c, int64_t count) {
  return static_cast<size_t>(std::clamp<int64_t>(whole_of(c, count) - c.axis_rank * count, 0, count));
}

// Which of the `count` ids or classes that the rank has this one is; nullopt: another rank's.
std::optional<size_t> own_index(const KernelContext& c, double index, int64_t count) {
  const auto whole = static_cast<int64_t>(index_in(c, index, whole_of(c, count))), own = whole - c.axis_rank * count;
  return own >= 0 && own < count ? std::optional(static_cast<size_t>(own)) : std::nullopt;
}

Arrays embedding(const KernelContext& c) {
  const Array &w = c.in(0), &ids = c.in(1);
  Array out = Array::zeros(w.dtype, c.op.result()->type().shape());
  for (size_t i = 0; i < ids.data.size(); ++i)
    if (const auto row = own_index(c, ids.data[i], w.shape[0]))
      for (size_t d = 0; d < width_of(w); ++d) out.data[i * width_of(w) + d] = w.data[*row * width_of(w) + d];
  return {out};
}

Arrays embedding_backward(const KernelContext& c) {
  const Array &g = c.in(0), &ids = c.in(1);
  Array out = Array::zeros(g.dtype, c.op.result()->type().shape());
  const double padding = number_of(c.op, "padding_idx", -1);
  for (size_t i = 0; i < ids.data.size(); ++i)
    if (const auto row = own_index(c, ids.data[i], out.shape[0]); row && ids.data[i] != padding)
      for (size_t d = 0; d < width_of(g); ++d) out.data[*row * width_of(g) + d] += g.data[i * width_of(g) + d];
  return {out};
}

size_t normalized_numel(const KernelContext& c) {
  size_t count = 1;
  for (const int64_t size : c.op.attr<std::vector<int64_t>>("normalized_shape")) count *= static_cast<size_t>(size);
  return count;
}

double operand_or(const KernelContext& c, size_t index, size_t i, double fallback) {
  return c.operands.size() > index && c.operands[index] ? c.in(index).data[i] : fallback;
}

Arrays layer_norm(const KernelContext& c) {
  const Array& x = c.in(0);
  const size_t n = normalized_numel(c);
  Array y = x, mean = Array::zeros(x.dtype, c.op.result(1)->type().shape()), rstd = mean;
  for (size_t r = 0; r < mean.data.size(); ++r) {
    double variance = 0;
    for (size_t i = 0; i < n; ++i) mean.data[r] += x.data[r * n + i] / static_cast<double>(n);
    for (size_t i = 0; i < n; ++i) variance += std::pow(x.data[r * n + i] - mean.data[r], 2) / static_cast<double>(n);
    rstd.data[r] = 1 / std::sqrt(variance + number_of(c.op, "eps"));
    for (size_t i = 0; i < n; ++i)
      y.data[r * n + i] =
          (x.data[r * n + i] - mean.data[r]) * rstd.data[r] * operand_or(c, 1, i, 1) + operand_or(c, 2, i, 0);
  }
  return {y, mean, rstd};
}

// With h = (x - mean) rstd: dL/dx = rstd · (g w - mean(g w) - h · mean(g w h)), dL/dw = Σ g h, dL/dbias = Σ g
Arrays layer_norm_backward(const KernelContext& c) {
  const Array &g = c.in(0), &x = c.in(1), &mean = c.in(2), &rstd = c.in(3);
  const size_t n = normalized_numel(c);
  const auto& mask = c.op.attr<std::vector<bool>>("output_mask");
  Array of_x = x, of_w = Array::zeros(x.dtype, c.op.attr<std::vector<int64_t>>("normalized_shape")), of_bias = of_w;
  for (size_t r = 0; r < rstd.data.size(); ++r) {
    const auto gw = [&](size_t i) { return g.data[r * n + i] * operand_or(c, 4, i, 1); };
    const auto h = [&](size_t i) { return (x.data[r * n + i] - mean.data[r]) * rstd.data[r]; };
    double sum = 0, with_h = 0;
    for (size_t i = 0; i < n; ++i) {
      sum += gw(i) / static_cast<double>(n);
      with_h += gw(i) * h(i) / static_cast<double>(n);
      of_w.data[i] += g.data[r * n + i] * h(i);
      of_bias.data[i] += g.data[r * n + i];
    }
    for (size_t i = 0; i < n; ++i) of_x.data[r * n + i] = rstd.data[r] * (gw(i) - sum - h(i) * with_h);
  }
  Arrays results = {of_x, of_w, of_bias};
  for (size_t i = 0; i < results.size(); ++i)
    if (!mask[i]) results[i] = Array::scalar(x.dtype, 0);
  return results;
}

// Elements of the last dims= dimensions of operand `x`.
size_t normalized(const KernelContext& c, size_t x) {
  const auto& shape = c.in(x).shape;
  size_t count = 1;
  for (size_t d = shape.size() - static_cast<size_t>(c.op.attr<int64_t>("dims")); d < shape.size(); ++d)
    count *= static_cast<size_t>(shape[d]);
  return count;
}

Arrays rms_norm(const KernelContext& c) {
  const Array& x = c.in(0);
  const size_t n = normalized(c, 0);
  Array y = x, rstd = Array::zeros(x.dtype, c.op.result(1)->type().shape());
  for (size_t r = 0; r < rstd.data.size(); ++r) {
    double sum = 0;
    for (size_t i = 0; i < n; ++i) sum += x.data[r * n + i] * x.data[r * n + i];
    rstd.data[r] = 1 / std::sqrt(sum / static_cast<double>(n) + number_of(c.op, "eps"));
    for (size_t i = 0; i < n; ++i) y.data[r * n + i] *= rstd.data[r] * (c.operands[1] ? c.in(1).data[i] : 1);
  }
  return {y, rstd};
}

// dL/dx_i = rstd · (g_i w_i - x_i rstd² · mean(g w x)), dL/dw_i = Σ_rows g_i x_i rstd
Arrays rms_norm_backward(const KernelContext& c) {
  const Array &g = c.in(0), &x = c.in(1), &rstd = c.in(3);
  const size_t n = normalized(c, 1);
  Array grad_x = x;
  Array grad_w = c.operands[2] ? Array::zeros(c.in(2).dtype, c.in(2).shape) : Array::scalar(DType::f32, 0);
  for (size_t r = 0; r < rstd.data.size(); ++r) {
    const auto gw = [&](size_t i) { return g.data[r * n + i] * (c.operands[2] ? c.in(2).data[i] : 1); };
    const double scale = rstd.data[r];
    double mean = 0;
    for (size_t i = 0; i < n; ++i) mean += gw(i) * x.data[r * n + i] / static_cast<double>(n);
    for (size_t i = 0; i < n; ++i) {
      const size_t at = r * n + i;
      grad_x.data[at] = scale * (gw(i) - x.data[at] * scale * scale * mean) + (c.operands[4] ? c.in(4).data[at] : 0);
      if (c.operands[2]) grad_w.data[i] += g.data[at] * x.data[at] * scale;
    }
  }
  const auto* only = c.op.find_attr<std::string>("only");
  const Array token = Array::scalar(DType::f32, 0);
  return {only && *only == "w" ? token : grad_x, only && *only == "x" ? token : grad_w};
}

// Element of a table that broadcasts with `shape`.
double broadcast_at(const Array& table, const std::vector<int64_t>& shape, size_t element) {
  size_t at = 0, stride = 1;
  const size_t skipped = shape.size() - table.shape.size();
  for (size_t d = shape.size(); d-- > skipped;) {
    const size_t index = element % static_cast<size_t>(shape[d]);
    element /= static_cast<size_t>(shape[d]);
    if (table.shape[d - skipped] > 1) at += index * stride;
    stride *= static_cast<size_t>(table.shape[d - skipped]);
  }
  return table.data[at];
}

// (first, second) · e^(±i angle), of neighbours or halves; an angle of a table as wide as x stands in both its halves.
Arrays turned(const KernelContext& c, double sign) {
  if (c.operands.size() != 3)
    throw UserError(
        concat(c.op.opcode, " by complex numbers, which the interpreter does not have\n  expected cos and sin"));
  Array out = c.in(0);
  const size_t n = width_of(out) / 2;
  const bool halves = c.op.attr_or("halves", false), full = halves && c.in(1).shape.back() == out.shape.back();
  std::vector<int64_t> half = out.shape;
  half.back() /= 2;
  for (size_t pair = 0; 2 * pair < out.data.size(); ++pair) {
    const size_t row = pair / n, j = pair % n;
    const size_t first = 2 * n * row + (halves ? j : 2 * j), second = first + (halves ? n : 1);
    const auto angle = [&](const Array& table, size_t element) {
      return full ? broadcast_at(table, out.shape, element) : broadcast_at(table, half, pair);
    };
    const double x = out.data[first], y = out.data[second];
    // As x · cos + rotate_half(x) · sin has it, and its gradient: with the angle of the element that sin is read for.
    const size_t of_first = sign > 0 ? first : second, of_second = sign > 0 ? second : first;
    out.data[first] = x * angle(c.in(1), first) - sign * y * angle(c.in(2), of_first);
    out.data[second] = y * angle(c.in(1), second) + sign * x * angle(c.in(2), of_second);
  }
  return {out};
}
Arrays rope(const KernelContext& c) { return turned(c, 1); }
Arrays rope_inverse(const KernelContext& c) { return turned(c, -1); }

// Probabilities of each row, and the logarithm of its sum.
struct Softmax {
  std::vector<double> p;
  double log_sum = 0;
};
Softmax softmax(std::vector<double> x) {
  Softmax s{std::move(x), 0};
  double sum = 0;
  for (const double v : s.p) sum += std::exp(v);
  s.log_sum = std::log(sum);
  for (double& v : s.p) v = sum == 0 ? 0 : std::exp(v - s.log_sum);  // 0: of nothing but -inf
  return s;
}

enum Reduction : int64_t { kEach = 0, kMean = 1, kSum = 2 };

struct Targets {
  double ignored, count = 0;
  int64_t reduction;
  Targets(const KernelContext& c, const Array& targets)
      : ignored(number_of(c.op, "ignore_index", -100)), reduction(c.op.attr_or<int64_t>("reduction", kMean)) {
    for (const double t : targets.data) count += t != ignored;
  }
};

std::vector<double> row(const Array& a, size_t r) {
  const auto begin = a.data.begin() + static_cast<std::ptrdiff_t>(r * width_of(a));
  return {begin, begin + static_cast<std::ptrdiff_t>(width_of(a))};
}

Arrays cross_entropy(const KernelContext& c) {
  const Array &logits = c.in(0), &targets = c.in(1);
  const Targets t(c, targets);
  Array each = Array::zeros(logits.dtype, targets.shape);
  double sum = 0;
  for (size_t r = 0; r < targets.data.size(); ++r) {
    if (targets.data[r] == t.ignored) continue;
    each.data[r] = softmax(row(logits, r)).log_sum - row(logits, r)[index_in(c, targets.data[r], logits.shape.back())];
    sum += each.data[r];
  }
  Array lse = Array::zeros(logits.dtype, targets.shape);
  for (size_t r = 0; r < targets.data.size(); ++r) lse.data[r] = softmax(row(logits, r)).log_sum;
  const Array count = Array::scalar(logits.dtype, t.reduction == kEach ? 0 : t.count);
  if (t.reduction == kEach) return {each, count, lse};
  return {Array::scalar(logits.dtype, t.reduction == kMean ? sum / t.count : sum), count, lse};
}

Arrays cross_entropy_backward(const KernelContext& c) {
  const Array &logits = c.in(1), &targets = c.in(2);
  const Targets t(c, targets);
  Array out = Array::zeros(logits.dtype, logits.shape);
  for (size_t r = 0; r < targets.data.size(); ++r) {
    if (targets.data[r] == t.ignored) continue;
    const double each = c.in(0).data[t.reduction == kEach ? r : 0] / (t.reduction == kMean ? c.in(3).data[0] : 1);
    const std::vector<double> x = row(logits, r);
    for (size_t v = 0; v < counted_of(c, logits.shape.back()); ++v)
      out.data[r * x.size() + v] =
          each * (std::exp(x[v] - c.in(4).data[r]) - (own_index(c, targets.data[r], logits.shape.back()) == v ? 1 : 0));
  }
  return {out};
}

// What a rank knows of its classes: the largest logit, the sum of exponentials relative to it, the target's logit.
Arrays cross_entropy_parts(const KernelContext& c) {
  const Array &logits = c.in(0), &targets = c.in(1);
  const size_t rows = targets.data.size();
  Array out = Array::zeros(logits.dtype, {3, static_cast<int64_t>(rows)});
  for (size_t r = 0; r < rows; ++r) {
    std::vector<double> x = row(logits, r);
    x.resize(counted_of(c, logits.shape.back()));
    out.data[r] = x.empty() ? -std::numeric_limits<double>::infinity() : *std::ranges::max_element(x);
    for (const double v : x) out.data[rows + r] += std::exp(v - out.data[r]);
    if (targets.data[r] == number_of(c.op, "ignore_index", -100)) continue;
    if (const auto own = own_index(c, targets.data[r], logits.shape.back())) out.data[2 * rows + r] = x[*own];
  }
  return {out};
}

Arrays cross_entropy_of_parts(const KernelContext& c) {
  const Array &parts = c.in(0), &targets = c.in(1);
  const Targets t(c, targets);
  const size_t rows = targets.data.size();
  Array each = Array::zeros(parts.dtype, targets.shape), lse = each;
  double sum = 0;
  for (size_t r = 0; r < rows; ++r) {
    double exponentials = 0, target = 0;
    for (size_t part = 0; part < parts.data.size(); part += 3 * rows) {
      exponentials += parts.data[part + rows + r] * std::exp(parts.data[part + r]);
      target += parts.data[part + 2 * rows + r];
    }
    lse.data[r] = std::log(exponentials);
    if (targets.data[r] != t.ignored) each.data[r] = lse.data[r] - target;
    sum += each.data[r];
  }
  const Array count = Array::scalar(parts.dtype, t.reduction == kEach ? 0 : t.count);
  if (t.reduction == kEach) return {each, count, lse};
  return {Array::scalar(parts.dtype, t.reduction == kMean ? sum / t.count : sum), count, lse};
}

// The mask is that of aten.bernoulli.p: what it depends on stands in the state.
Array dropped(const Array& x, double keep, const std::vector<double>& state) {
  const Array mask = bernoulli(x, keep, state);
  Array out = x;
  for (size_t i = 0; i < out.data.size(); ++i) out.data[i] *= mask.data[i] / keep;
  return out;
}
Arrays dropout(const KernelContext& c) {
  const Array state = {DType::i64, {2}, draw_state(c)};
  return {dropped(c.in(), number_of(c.op, "keep"), state.data), state};
}
Arrays dropout_backward(const KernelContext& c) { return {dropped(c.in(0), number_of(c.op, "keep"), c.in(1).data)}; }

// One query of one head: its scores' softmax over the keys that it sees.
struct Attention {
  const KernelContext& c;
  const Array &q, &k, &v;
  size_t heads, groups, queries, keys, width, value_width;

  Attention(const KernelContext& context, size_t first)
      : c(context),
        q(c.in(first)),
        k(c.in(first + 1)),
        v(c.in(first + 2)),
        heads(static_cast<size_t>(q.shape[1])),
        groups(static_cast<size_t>(k.shape[1])),
        queries(static_cast<size_t>(q.shape[2])),
        keys(static_cast<size_t>(k.shape[2])),
        width(width_of(q)),
        value_width(width_of(v)) {}

  size_t rows() const { return static_cast<size_t>(q.shape[0]) * heads * queries; }
  double scale() const { return number_of(c.op, "scale", 1 / std::sqrt(static_cast<double>(width))); }
  // Row of k or v that key `j` of query row `r` is.
  size_t key_row(size_t r, size_t j) const {
    const size_t batch = r / (heads * queries), head = r / queries % heads;
    return (batch * groups + head / (heads / groups)) * keys + j;
  }
  // Where row r of those that a rank has stands in the sequence, of which axis= cuts the queries, with shift= the keys too.
  size_t position(size_t r, size_t rank) const {
    const auto ranks = static_cast<size_t>(c.axis_ranks), half = queries / 2;
    if (!c.op.attr_or("balanced", false)) return rank * queries + r;
    return r < half ? rank * half + r : (2 * ranks - 1 - rank) * half + r - half;
  }
  size_t query_position(size_t r) const { return position(r, static_cast<size_t>(c.axis_rank)); }
  size_t key_position(size_t j) const {
    const auto* shift = c.op.find_attr<int64_t>("shift");
    return shift ? position(j, static_cast<size_t>((c.axis_rank - *shift + c.axis_ranks) % c.axis_ranks)) : j;
  }
  //   given: a mask, or with documents= the document of each position
  std::vector<double> scores(size_t r, const Array* given) const {
    const Array* documents = c.op.attr_or("documents", false) ? given : nullptr;
    const Array* mask = documents ? nullptr : given;
    const size_t row = r / (heads * queries) * (documents ? width_of(*documents) : 0), at = query_position(r % queries);
    std::vector<double> scores(keys);
    for (size_t j = 0; j < keys; ++j) {
      for (size_t d = 0; d < width; ++d) scores[j] += q.data[r * width + d] * k.data[key_row(r, j) * width + d];
      scores[j] *= scale();
      const size_t key = key_position(j);
      if (c.op.attr_or("is_causal", false) && key > at) scores[j] = -std::numeric_limits<double>::infinity();
      if (documents && documents->data[row + key] != documents->data[row + at])
        scores[j] = -std::numeric_limits<double>::infinity();
      if (mask) scores[j] += mask->data[(r % queries) * keys + j];
    }
    return scores;
  }
  Softmax weights(size_t r, const Array* given) const { return softmax(scores(r, given)); }
  // In backward, where the keys are some of those that the query has seen: by the sum over all of them.
  Softmax weights(size_t r, const Array* given, const Array& log_sums) const {
    if (!c.op.has_attr("shift")) return weights(r, given);
    Softmax s{scores(r, given), log_sums.data[r]};
    for (double& p : s.p) p = std::exp(p - s.log_sum);
    return s;
  }
};

const Array* mask_of(const KernelContext& c, size_t index) {
  return c.operands.size() > index ? c.operands[index] : nullptr;
}

Arrays sdpa(const KernelContext& c) {
  const Attention a(c, 0);
  Array o = Array::zeros(a.q.dtype, c.op.result(0)->type().shape());
  Array lse = Array::zeros(a.q.dtype, c.op.result(1)->type().shape());
  for (size_t r = 0; r < a.rows(); ++r) {
    const Softmax s = a.weights(r, mask_of(c, 3));
    lse.data[r] = s.log_sum;
    for (size_t j = 0; j < a.keys; ++j)
      for (size_t d = 0; d < a.value_width; ++d)
        o.data[r * a.value_width + d] += s.p[j] * a.v.data[a.key_row(r, j) * a.value_width + d];
  }
  return {o, lse};
}

Arrays sdpa_backward(const KernelContext& c) {
  const Attention a(c, 1);
  const Array &g = c.in(0), &o = c.in(4);
  Array dq = Array::zeros(a.q.dtype, a.q.shape), dk = Array::zeros(a.k.dtype, a.k.shape),
        dv = Array::zeros(a.v.dtype, a.v.shape);
  const size_t w = a.width, e = a.value_width;
  for (size_t r = 0; r < a.rows(); ++r) {
    const Softmax s = a.weights(r, mask_of(c, 6), c.in(5));
    double of_row = 0;  // Σ_j p_j · dL/dp_j
    for (size_t d = 0; d < e; ++d) of_row += g.data[r * e + d] * o.data[r * e + d];
    for (size_t j = 0; j < a.keys; ++j) {
      const size_t at = a.key_row(r, j);
      double of_p = 0;
      for (size_t d = 0; d < e; ++d) {
        of_p += g.data[r * e + d] * a.v.data[at * e + d];
        dv.data[at * e + d] += s.p[j] * g.data[r * e + d];
      }
      const double of_score = s.p[j] * (of_p - of_row) * a.scale();
      for (size_t d = 0; d < w; ++d) {
        dq.data[r * w + d] += of_score * a.k.data[at * w + d];
        dk.data[at * w + d] += of_score * a.q.data[r * w + d];
      }
    }
  }
  return {dq, dk, dv};
}

// Attention to the keys of both: each part by the sum of its weights.
Arrays sdpa_merge(const KernelContext& c) {
  const Array &a = c.in(0), &lse_a = c.in(1), &b = c.in(2), &lse_b = c.in(3);
  Array o = Array::zeros(c.op.result(0)->type().dtype, a.shape), lse = lse_a;
  const size_t width = width_of(a);
  for (size_t r = 0; r < lse.data.size(); ++r) {
    const double most = std::max(lse_a.data[r], lse_b.data[r]);
    if (std::isinf(most)) continue;  // neither has seen a key: -inf and 0
    const double of_a = std::exp(lse_a.data[r] - most), of_b = std::exp(lse_b.data[r] - most);
    lse.data[r] = most + std::log(of_a + of_b);
    for (size_t i = r * width; i < (r + 1) * width; ++i)
      o.data[i] = (of_a * a.data[i] + of_b * b.data[i]) / (of_a + of_b);
  }
  return {o, lse};
}

struct Row {
  std::string_view opcode;
  Kernel kernel;
};
constexpr std::array kKernels = {
    Row{"dropout", &dropout},
    Row{"dropout_backward", &dropout_backward},
    Row{"joined_linear", &joined_linear},
    Row{"joined_linear_dx", &joined_linear_dx},
    Row{"joined_linear_dw", &joined_linear_dw},
    Row{"matmul", &matmul},
    Row{"embedding", &embedding},
    Row{"embedding_backward", &embedding_backward},
    Row{"layer_norm", &layer_norm},
    Row{"layer_norm_backward", &layer_norm_backward},
    Row{"linear", &linear},
    Row{"linear_dx", &linear_dx},
    Row{"linear_dw", &linear_dw},
    Row{"rms_norm", &rms_norm},
    Row{"rms_norm_backward", &rms_norm_backward},
    Row{"rope", &rope},
    Row{"rope_inverse", &rope_inverse},
    Row{"sdpa", &sdpa},
    Row{"sdpa_backward", &sdpa_backward},
    Row{"sdpa_merge", &sdpa_merge},
    Row{"cross_entropy", &cross_entropy},
    Row{"cross_entropy_backward", &cross_entropy_backward},
    Row{"cross_entropy_of_parts", &cross_entropy_of_parts},
    Row{"cross_entropy_parts", &cross_entropy_parts},
};

}  // namespace

Kernel find_canonical_kernel(std::string_view opcode) {
  const auto* found = std::ranges::find(kKernels, opcode, &Row::opcode);
  return found == kKernels.end() ? nullptr : found->kernel;
}

}  // namespace sfsdp::ir::interp
