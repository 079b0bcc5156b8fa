// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/interp/kernels.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <sstream>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/philox.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/testing/interp/canonical_kernels.h"
#include "sfsdp/testing/interp/part_kernels.h"

namespace sfsdp::ir::interp {
namespace {

using Arrays = std::vector<Array>;

std::vector<int64_t> result_shape(const KernelContext& c) { return c.op.result()->type().shape(); }

size_t wrap_dim(int64_t dim, size_t rank) {
  return static_cast<size_t>(dim < 0 ? dim + static_cast<int64_t>(rank) : dim);
}

// ---- walking over elements ------------------------------------------------------------------------------------------

std::vector<int64_t> index_of(size_t element, const std::vector<int64_t>& shape) {
  auto rest = static_cast<int64_t>(element);
  std::vector<int64_t> index(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    index[d] = rest % shape[d];
    rest /= shape[d];
  }
  return index;
}

size_t element_of(const std::vector<int64_t>& index, const std::vector<int64_t>& shape) {
  int64_t element = 0;
  for (size_t d = 0; d < shape.size(); ++d) element = element * shape[d] + index[d];
  return static_cast<size_t>(element);
}

// A result of `shape` whose element at `index` is source.data[element(index)].
Array gather_elements(const Array& source, const std::vector<int64_t>& shape,
                      const std::function<std::vector<int64_t>(std::vector<int64_t>)>& source_index) {
  Array out = Array::zeros(source.dtype, shape);
  for (size_t i = 0; i < out.data.size(); ++i)
    out.data[i] = source.data[element_of(source_index(index_of(i, shape)), source.shape)];
  return out;
}

Array map(const Array& in, const std::function<double(double)>& f) {
  Array out = in;
  for (double& x : out.data) x = f(x);
  return out;
}

// NumPy's broadcasting: shapes are aligned at the end, a dimension of 1 repeats. By element of a result of `shape`: the one of
// an operand of shape `of`.
std::vector<size_t> broadcast_elements(const std::vector<int64_t>& of, const std::vector<int64_t>& shape) {
  std::vector<size_t> elements = {0};
  int64_t below = 1;  // elements of the operand in the dimensions that are done
  for (size_t d = shape.size(); d-- > 0;) {
    const size_t own = d + of.size() - shape.size();
    const int64_t step = own < of.size() && of[own] != 1 ? below : 0, done = std::ssize(elements);
    for (int64_t i = 1; i < shape[d]; ++i)
      for (int64_t e = 0; e < done; ++e)
        elements.push_back(elements[static_cast<size_t>(e)] + static_cast<size_t>(i * step));
    if (own < of.size()) below *= of[own];
  }
  return elements;
}

Arrays zip(const KernelContext& c, const std::function<double(double, double)>& f) {
  Array out = Array::zeros(c.in().dtype, result_shape(c));
  const auto a = broadcast_elements(c.in(0).shape, out.shape), b = broadcast_elements(c.in(1).shape, out.shape);
  for (size_t i = 0; i < out.data.size(); ++i) out.data[i] = f(c.in(0).data[a[i]], c.in(1).data[b[i]]);
  return {out};
}

// ---- sfsdp's own ----------------------------------------------------------------------------------------------------

Arrays identity(const KernelContext& c) { return {c.in()}; }

Arrays second(const KernelContext& c) { return {c.in(1)}; }

Arrays pad(const KernelContext& c) {
  const Array& in = c.in();
  Array out = Array::zeros(in.dtype, result_shape(c));
  for (size_t i = 0; i < in.data.size(); ++i) out.data[element_of(index_of(i, in.shape), out.shape)] = in.data[i];
  return {out};
}

Arrays narrow(const KernelContext& c) {
  const auto dim = static_cast<size_t>(c.op.attr<int64_t>("dim"));
  const int64_t start = c.op.attr<int64_t>("start");
  return {gather_elements(c.in(), result_shape(c), [&](std::vector<int64_t> index) {
    index[dim] += start;
    return index;
  })};
}

Arrays view(const KernelContext& c) {
  const auto offset = static_cast<size_t>(number_of(c.op, "offset", 0));
  Array out = Array::zeros(c.in().dtype, result_shape(c));
  std::copy_n(c.in().data.begin() + static_cast<std::ptrdiff_t>(offset), out.data.size(), out.data.begin());
  return {out};
}

Arrays full(const KernelContext& c) {
  Array out = Array::zeros(c.op.result()->type().dtype, result_shape(c));
  std::ranges::fill(out.data, number_of(c.op, "value"));
  return {out};
}

Arrays mul_by(const KernelContext& c, const char* key) {
  const double value = number_of(c.op, key);
  return {map(c.in(), [&](double x) { return x * value; })};
}
Arrays mul_scalar(const KernelContext& c) { return mul_by(c, "value"); }
Arrays aten_mul_scalar(const KernelContext& c) { return mul_by(c, "other"); }
Arrays add_scalar(const KernelContext& c) {
  return {map(c.in(), [other = number_of(c.op, "other")](double x) { return x + other; })};
}
Arrays div_scalar(const KernelContext& c) {
  return {map(c.in(), [other = number_of(c.op, "other")](double x) { return x / other; })};
}
Arrays pow_scalar(const KernelContext& c) {
  return {map(c.in(), [exponent = number_of(c.op, "exponent")](double x) { return std::pow(x, exponent); })};
}

Arrays sum_squares(const KernelContext& c) {
  Array out = Array::zeros(DType::f64, result_shape(c));
  const auto integers = [&](const char* key) { return c.op.attr_or<std::vector<int64_t>>(key, {}); };
  const auto segments = integers("segments"), offsets = integers("offsets"), numels = integers("numels");
  const auto once = c.op.attr_or("counted_once", std::vector<bool>());
  const int64_t inner = c.op.attr_or<int64_t>("inner", 1), outer_rank = c.axis_rank / inner;
  size_t sum = 0, segment = 0;
  for (size_t i = 0; i < c.operands.size(); ++i) {
    const bool replicated = c.op.has_attr("replicated") && c.op.attr<std::vector<bool>>("replicated")[i];
    const std::vector<double>& data = c.in(i).data;
    const auto whole = static_cast<int64_t>(data.size());
    const int64_t parts = segments.empty() ? 0 : segments[i];
    const bool boxed = c.op.has_attr("boxed") && c.op.attr<std::vector<bool>>("boxed")[i];
    const int64_t shard = replicated ? 0 : outer_rank / (boxed ? c.op.attr<int64_t>("boxes") : 1) * whole;  // its begin
    for (int64_t part = 0; part < std::max<int64_t>(parts, 1); ++part, ++sum) {
      const bool is_once = sum < once.size() && once[sum];
      const bool counts = (!replicated || outer_rank == 0) && (!is_once || c.axis_rank % inner == 0);
      int64_t begin = 0, end = whole;
      if (parts > 0) {
        begin = std::clamp(offsets[segment] - shard, int64_t{0}, whole);
        end = std::clamp(offsets[segment] + numels[segment] - shard, int64_t{0}, whole);
        ++segment;
      }
      for (int64_t e = begin; counts && e < end; ++e)
        out.data[sum] += data[static_cast<size_t>(e)] * data[static_cast<size_t>(e)];
    }
  }
  return {out};
}

Arrays pack(const KernelContext& c) {
  Array out = Array::zeros(c.in().dtype, result_shape(c));
  const auto& offsets = c.op.attr<std::vector<int64_t>>("offsets");
  const int64_t ranks = c.op.attr_or<int64_t>("ranks", 1);
  const int64_t whole = std::ssize(out.data) / ranks;
  for (size_t i = 0; i < c.operands.size(); ++i) {
    const int64_t part = std::ssize(c.in(i).data) / ranks;
    for (int64_t r = 0; r < ranks; ++r)
      std::copy_n(c.in(i).data.begin() + r * part, part, out.data.begin() + r * whole + offsets[i]);
  }
  return {out};
}

Arrays unpack(const KernelContext& c) {
  Array out = Array::zeros(c.in().dtype, result_shape(c));
  const auto ranks = c.op.attr<int64_t>("ranks"), offset = c.op.attr<int64_t>("offset");
  const int64_t whole = std::ssize(c.in().data) / ranks, part = std::ssize(out.data) / ranks;
  for (int64_t r = 0; r < ranks; ++r)
    std::copy_n(c.in().data.begin() + r * whole + offset, part, out.data.begin() + r * part);
  return {out};
}

double count_or_one(const KernelContext& c) { return c.operands.size() > 1 && c.operands[1] ? c.in(1).data[0] : 1; }

Arrays grad_norm(const KernelContext& c) {
  double sum = 0;
  for (const double x : c.in().data) sum += x;
  return {Array::scalar(DType::f64, std::sqrt(sum) / count_or_one(c))};
}

Arrays clip_coefficient(const KernelContext& c) {
  const double max_norm = number_of(c.op, "max_norm");
  const double clip = max_norm > 0 ? std::min(1.0, max_norm / (c.in().data[0] + 1e-6)) : 1.0;
  return {Array::scalar(DType::f64, clip / count_or_one(c))};
}

Arrays non_finite(const KernelContext& c) { return {Array::scalar(DType::f64, std::isfinite(c.in().data[0]) ? 0 : 1)}; }

Arrays step_count(const KernelContext& c) {
  return {Array::scalar(c.in().dtype, c.in().data[0] + 1 - c.in(1).data[0])};
}

// weight_decay= or lr_factor=, of each element of this rank's part: of the segment that it lies in.
std::vector<double> update_numbers(const KernelContext& c, const char* key, double fallback) {
  const auto* list = c.op.find_attr<std::vector<double>>(key);
  std::vector<double> numbers(c.in().data.size(), list ? 0 : number_of(c.op, key, fallback));
  for (size_t i = 0; list && i < numbers.size(); ++i) {
    const auto place = c.axis_rank * std::ssize(numbers) + static_cast<int64_t>(i);
    const auto& begins = c.op.attr<std::vector<int64_t>>("begins");
    numbers[i] = list->at(static_cast<size_t>(std::ranges::upper_bound(begins, place) - begins.begin() - 1));
  }
  return numbers;
}

// Kingma and Ba, arXiv:1412.6980, algorithm 1, in PyTorch's form. Decoupled: Loshchilov and Hutter, arXiv:1711.05101,
// algorithm 2; else the decay is a part of the gradient.
Arrays adam_like(const KernelContext& c, bool decoupled) {
  Array p = c.in(0), m = c.in(1), v = c.in(2);
  const double step = c.in(4).data[0];
  if (c.in(5).data[0] != 0) return {p, m, v};
  const double beta1 = number_of(c.op, "beta1"), beta2 = number_of(c.op, "beta2"), eps = number_of(c.op, "eps");
  const double correction1 = 1 - std::pow(beta1, step), correction2 = 1 - std::pow(beta2, step);
  const auto decays = update_numbers(c, "weight_decay", 0), factors = update_numbers(c, "lr_factor", 1);
  for (size_t i = 0; i < p.data.size(); ++i) {
    const double gradient = c.in(3).data[i] + (decoupled ? 0 : decays[i] * p.data[i]);
    if (decoupled) p.data[i] *= 1 - c.host.lr * factors[i] * decays[i];
    m.data[i] = beta1 * m.data[i] + (1 - beta1) * gradient;
    v.data[i] = beta2 * v.data[i] + (1 - beta2) * gradient * gradient;
    p.data[i] -= c.host.lr * factors[i] * (m.data[i] / correction1) / (std::sqrt(v.data[i] / correction2) + eps);
  }
  return {p, m, v};
}
Arrays adamw(const KernelContext& c) { return adam_like(c, true); }
Arrays adam(const KernelContext& c) { return adam_like(c, false); }

Arrays sgd(const KernelContext& c) {
  Arrays results{c.in(0)};
  if (c.operands[1]) results.push_back(c.in(1));
  if (c.in(3).data[0] != 0) return results;
  const double momentum = c.operands[1] ? number_of(c.op, "momentum") : 0;
  const auto decays = update_numbers(c, "weight_decay", 0), factors = update_numbers(c, "lr_factor", 1);
  for (size_t i = 0; i < results[0].data.size(); ++i) {
    double direction = c.in(2).data[i] + decays[i] * results[0].data[i];
    if (c.operands[1]) direction = results[1].data[i] = momentum * c.in(1).data[i] + direction;
    results[0].data[i] = results[0].data[i] - c.host.lr * factors[i] * direction;
  }
  return results;
}

// A number in [0, 1) per element, from the op's attributes and from nothing else.
Arrays rand(const KernelContext& c) {
  std::ostringstream key;
  for (const auto& [name, value] : c.op.attrs) key << name << '=' << value << ' ';
  Array out = Array::zeros(DType::f64, result_shape(c));
  const uint64_t seed = hash_path(key.str());
  for (size_t i = 0; i < out.data.size(); ++i) out.data[i] = philox4x32(seed, 0, i)[0] * 0x1p-32;
  return {out};
}

// ---- a handful of ATen's --------------------------------------------------------------------------------------------

Arrays mul(const KernelContext& c) { return zip(c, std::multiplies()); }
Arrays div(const KernelContext& c) { return zip(c, std::divides()); }
Arrays add_scaled(const KernelContext& c, double alpha) {
  return zip(c, [alpha](double a, double b) { return a + alpha * b; });
}
Arrays add(const KernelContext& c) { return add_scaled(c, number_of(c.op, "alpha", 1)); }
Arrays sub(const KernelContext& c) { return add_scaled(c, -number_of(c.op, "alpha", 1)); }

Arrays relu(const KernelContext& c) {
  return {map(c.in(), [](double x) { return x > 0 ? x : 0; })};
}
Arrays neg(const KernelContext& c) { return {map(c.in(), std::negate())}; }
Arrays silu(const KernelContext& c) {
  return {map(c.in(), [](double x) { return x / (1 + std::exp(-x)); })};
}

Arrays rsqrt(const KernelContext& c) {
  return {map(c.in(), [](double x) { return 1 / std::sqrt(x); })};
}

Arrays mm(const KernelContext& c) {
  const Array &a = c.in(0), &b = c.in(1);
  SFSDP_CHECK(a.shape.size() == 2 && b.shape.size() == 2 && a.shape[1] == b.shape[0], "aten.mm of ", a, " and ", b);
  const auto rows = static_cast<size_t>(a.shape[0]), inner = static_cast<size_t>(a.shape[1]),
             columns = static_cast<size_t>(b.shape[1]);
  Array out = Array::zeros(a.dtype, {a.shape[0], b.shape[1]});
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j < columns; ++j)
      for (size_t k = 0; k < inner; ++k) out.data[i * columns + j] += a.data[i * inner + k] * b.data[k * columns + j];
  return {out};
}

// %c + %a · %b, of which c broadcasts
Arrays addmm(const KernelContext& c) {
  const KernelContext of_product{c.op, c.operands.subspan(1), c.host, c.axis_rank};
  Array out = mm(of_product)[0];
  const auto from = broadcast_elements(c.in().shape, out.shape);
  for (size_t i = 0; i < out.data.size(); ++i) out.data[i] += c.in().data[from[i]];
  return {out};
}

Arrays transpose(const KernelContext& c, int64_t dim0, int64_t dim1) {
  const size_t rank = c.in().shape.size(), a = wrap_dim(dim0, rank), b = wrap_dim(dim1, rank);
  return {gather_elements(c.in(), result_shape(c), [&](std::vector<int64_t> index) {
    std::swap(index[a], index[b]);
    return index;
  })};
}
Arrays transpose_2d(const KernelContext& c) { return c.in().shape.size() < 2 ? Arrays{c.in()} : transpose(c, 0, 1); }
Arrays transpose_int(const KernelContext& c) {
  return transpose(c, c.op.attr<int64_t>("dim0"), c.op.attr<int64_t>("dim1"));
}

// Dimension i of the result is dimension dims[i] of the operand.
Arrays permute(const KernelContext& c) {
  const auto& dims = c.op.attr<std::vector<int64_t>>("dims");
  return {gather_elements(c.in(), result_shape(c), [&](const std::vector<int64_t>& index) {
    std::vector<int64_t> source(index.size());
    for (size_t i = 0; i < index.size(); ++i) source[wrap_dim(dims[i], dims.size())] = index[i];
    return source;
  })};
}

Arrays sum_all(const KernelContext& c) {
  Array out = Array::scalar(c.in().dtype, 0);
  for (const double x : c.in().data) out.data[0] += x;
  return {out};
}

Arrays sum_dims(const KernelContext& c) {
  const Array& in = c.in();
  const auto& dims = c.op.attr<std::vector<int64_t>>("dim");
  std::vector<bool> summed(in.shape.size(), dims.empty());
  for (const int64_t dim : dims) summed[wrap_dim(dim, in.shape.size())] = true;
  std::vector<int64_t> kept = in.shape;  // keepdim's shape: the result's elements stand in the same order
  for (size_t d = 0; d < kept.size(); ++d)
    if (summed[d]) kept[d] = 1;
  Array out = Array::zeros(in.dtype, kept);
  for (size_t i = 0; i < in.data.size(); ++i) {
    auto index = index_of(i, in.shape);
    for (size_t d = 0; d < index.size(); ++d)
      if (summed[d]) index[d] = 0;
    out.data[element_of(index, kept)] += in.data[i];
  }
  out.shape = result_shape(c);
  return {out};
}

Arrays mean_dims(const KernelContext& c) {
  Arrays sums = sum_dims(c);
  const double count = static_cast<double>(c.in().numel()) / static_cast<double>(std::max<int64_t>(sums[0].numel(), 1));
  return {map(sums[0], [count](double x) { return x / count; })};
}

Arrays expand(const KernelContext& c) {
  Array out = Array::zeros(c.in().dtype, result_shape(c));
  const auto from = broadcast_elements(c.in().shape, out.shape);
  for (size_t i = 0; i < out.data.size(); ++i) out.data[i] = c.in().data[from[i]];
  return {out};
}

Arrays select(const KernelContext& c) {
  const size_t dim = wrap_dim(c.op.attr<int64_t>("dim"), c.in().shape.size());
  const size_t index = wrap_dim(c.op.attr<int64_t>("index"), static_cast<size_t>(c.in().shape[dim]));
  return {gather_elements(c.in(), result_shape(c), [&](std::vector<int64_t> at) {
    at.insert(at.begin() + static_cast<std::ptrdiff_t>(dim), static_cast<int64_t>(index));
    return at;
  })};
}

// Zeros but for the elements that the selection had.
Arrays select_backward(const KernelContext& c) {
  Array out = Array::zeros(c.in().dtype, result_shape(c));
  const size_t dim = wrap_dim(c.op.attr<int64_t>("dim"), out.shape.size());
  const size_t index = wrap_dim(c.op.attr_or<int64_t>("index", 0), static_cast<size_t>(out.shape[dim]));
  for (size_t i = 0; i < c.in().data.size(); ++i) {
    auto at = index_of(i, c.in().shape);
    at.insert(at.begin() + static_cast<std::ptrdiff_t>(dim), static_cast<int64_t>(index));
    out.data[element_of(at, out.shape)] = c.in().data[i];
  }
  return {out};
}

Arrays stack(const KernelContext& c) {
  Array out = Array::zeros(c.in().dtype, result_shape(c));
  const size_t dim = wrap_dim(static_cast<int64_t>(number_of(c.op, "dim", 0)), out.shape.size());
  for (size_t k = 0; k < c.operands.size(); ++k)
    for (size_t i = 0; i < c.in(k).data.size(); ++i) {
      auto at = index_of(i, c.in(k).shape);
      at.insert(at.begin() + static_cast<std::ptrdiff_t>(dim), static_cast<int64_t>(k));
      out.data[element_of(at, out.shape)] = c.in(k).data[i];
    }
  return {out};
}

// Where element `index` of a strided view of a row-major array lies in it.
size_t strided_element(const KernelContext& c, const std::vector<int64_t>& index) {
  const auto& stride = c.op.attr<std::vector<int64_t>>("stride");
  auto element = c.op.attr_or<int64_t>("storage_offset", 0);
  for (size_t d = 0; d < stride.size(); ++d) element += index[d] * stride[d];
  return static_cast<size_t>(element);
}

Arrays as_strided(const KernelContext& c) {
  Array out = Array::zeros(c.in().dtype, result_shape(c));
  for (size_t i = 0; i < out.data.size(); ++i) out.data[i] = c.in().data[strided_element(c, index_of(i, out.shape))];
  return {out};
}

Arrays as_strided_scatter(const KernelContext& c) {
  Array out = c.in();
  const Array& part = c.in(1);
  for (size_t i = 0; i < part.data.size(); ++i) out.data[strided_element(c, index_of(i, part.shape))] = part.data[i];
  return {out};
}

Arrays cat(const KernelContext& c) {
  const size_t dim = wrap_dim(static_cast<int64_t>(number_of(c.op, "dim", 0)), c.in().shape.size());
  Array out = Array::zeros(c.in().dtype, result_shape(c));
  int64_t offset = 0;
  for (const Array* operand : c.operands) {
    for (size_t i = 0; i < operand->data.size(); ++i) {
      auto index = index_of(i, operand->shape);
      index[dim] += offset;
      out.data[element_of(index, out.shape)] = operand->data[i];
    }
    offset += operand->shape[dim];
  }
  return {out};
}

Arrays ne_scalar(const KernelContext& c) {
  const double other = number_of(c.op, "other");
  return {map(c.in(), [other](double x) { return x != other ? 1 : 0; })};
}

// The elements of each row along attribute `dim`: their first place, and from each to the next.
struct Rows {
  std::vector<size_t> first;
  size_t length = 1, step = 1;
};
Rows rows_along_dim(const KernelContext& c) {
  const std::vector<int64_t>& shape = c.in().shape;
  const auto rank = static_cast<int64_t>(shape.size());
  const int64_t given = c.op.attr<int64_t>("dim"), dim = given < 0 ? given + rank : given;
  Rows rows;
  if (rank > 0) rows.length = static_cast<size_t>(shape[static_cast<size_t>(dim)]);
  for (int64_t d = dim + 1; d < rank; ++d) rows.step *= static_cast<size_t>(shape[static_cast<size_t>(d)]);
  for (size_t i = 0; i < c.in().data.size(); ++i)
    if (i / rows.step % rows.length == 0) rows.first.push_back(i);
  return rows;
}

Arrays log_softmax(const KernelContext& c) {
  const Array& x = c.in();
  const Rows rows = rows_along_dim(c);
  Array out = x;
  for (const size_t first : rows.first) {
    const auto at = [&](size_t v) { return x.data[first + v * rows.step]; };
    double largest = at(0), sum = 0;
    for (size_t v = 0; v < rows.length; ++v) largest = std::max(largest, at(v));
    for (size_t v = 0; v < rows.length; ++v) sum += std::exp(at(v) - largest);
    for (size_t v = 0; v < rows.length; ++v) out.data[first + v * rows.step] -= largest + std::log(sum);
  }
  return {out};
}

// %grad, %log_p
Arrays log_softmax_backward(const KernelContext& c) {
  const Array &grad = c.in(0), &log_p = c.in(1);
  const Rows rows = rows_along_dim(c);
  Array out = grad;
  for (const size_t first : rows.first) {
    double sum = 0;
    for (size_t v = 0; v < rows.length; ++v) sum += grad.data[first + v * rows.step];
    for (size_t v = 0; v < rows.length; ++v)
      out.data[first + v * rows.step] -= std::exp(log_p.data[first + v * rows.step]) * sum;
  }
  return {out};
}

bool is_mean(const Op& op) { return number_of(op, "reduction", 1) == 1; }

// %log_p [tokens, classes], %targets, none: minus the targets' mean or sum, and how many count
Arrays nll_loss(const KernelContext& c) {
  const Array &log_p = c.in(0), &targets = c.in(1);
  const double ignored = number_of(c.op, "ignore_index", -100);
  double sum = 0, count = 0;
  for (size_t t = 0; t < targets.data.size(); ++t) {
    if (targets.data[t] == ignored) continue;
    sum -= log_p.data[t * static_cast<size_t>(log_p.shape[1]) + index_in(c, targets.data[t], log_p.shape[1])];
    ++count;
  }
  return {Array::scalar(log_p.dtype, is_mean(c.op) ? sum / count : sum), Array::scalar(log_p.dtype, count)};
}

// %grad of the loss, %log_p, %targets, none, %count
Arrays nll_loss_backward(const KernelContext& c) {
  const Array &log_p = c.in(1), &targets = c.in(2);
  const double ignored = number_of(c.op, "ignore_index", -100);
  const double each = -c.in(0).data[0] / (is_mean(c.op) ? c.in(4).data[0] : 1);
  Array out = Array::zeros(log_p.dtype, log_p.shape);
  for (size_t t = 0; t < targets.data.size(); ++t)
    if (targets.data[t] != ignored)
      out.data[t * static_cast<size_t>(log_p.shape[1]) + index_in(c, targets.data[t], log_p.shape[1])] = each;
  return {out};
}

struct Row {
  std::string_view opcode;
  Kernel kernel;
};
constexpr Row kKernels[] = {
    {"cast", &identity},  // the interpreter rounds to the result's dtype
    {"wait", &identity},
    {"gradient", &identity},
    {"accumulate", &identity},  // the interpreter adds what is there
    {"pad", &pad},
    {"narrow", &narrow},
    {"view", &view},
    {"scalar", &full},
    {"full", &full},
    {"add_into", &add},
    {"store", &second},
    {"scale", &mul},
    {"div", &div},
    {"mul_scalar", &mul_scalar},
    {"sum_squares", &sum_squares},
    {"pack", &pack},
    {"unpack", &unpack},
    {"grad_norm", &grad_norm},
    {"clip_coefficient", &clip_coefficient},
    {"non_finite", &non_finite},
    {"step_count", &step_count},
    {"adamw", &adamw},
    {"adam", &adam},
    {"sgd", &sgd},
    {"aten.rand", &rand},
    {"aten.add.Tensor", &add},
    {"aten.sub.Tensor", &sub},
    {"aten.mul.Tensor", &mul},
    {"aten.mul.Scalar", &aten_mul_scalar},
    {"aten.add.Scalar", &add_scalar},
    {"aten.div.Tensor", &div},
    {"aten.div.Scalar", &div_scalar},
    {"aten.pow.Tensor_Scalar", &pow_scalar},
    {"aten.rsqrt", &rsqrt},
    {"aten.expand", &expand},
    {"aten.select.int", &select},
    {"aten.select_backward", &select_backward},
    {"aten.stack", &stack},
    {"aten.as_strided", &as_strided},
    {"aten.as_strided_scatter", &as_strided_scatter},
    {"aten.mean.dim", &mean_dims},
    {"aten.relu", &relu},
    {"aten.neg", &neg},
    {"aten.silu", &silu},
    {"aten.mm", &mm},
    {"aten.addmm", &addmm},
    {"aten.t", &transpose_2d},
    {"aten.transpose.int", &transpose_int},
    {"aten.permute", &permute},
    {"aten.view", &view},
    {"aten._unsafe_view", &view},
    {"aten.unsqueeze", &view},
    {"aten.squeeze.dim", &view},
    {"aten.alias", &identity},
    {"aten.clone", &identity},
    {"aten.detach", &identity},
    {"aten._to_copy", &identity},
    {"aten.sum", &sum_all},
    {"aten.sum.dim_IntList", &sum_dims},
    {"aten.cat", &cat},
    {"aten.ne.Scalar", &ne_scalar},
    {"aten._log_softmax", &log_softmax},
    {"aten._log_softmax_backward_data", &log_softmax_backward},
    {"aten.nll_loss_forward", &nll_loss},
    {"aten.nll_loss_backward", &nll_loss_backward},
};

}  // namespace

size_t index_in(const KernelContext& c, double index, int64_t count) {
  if (!(index >= 0 && index < static_cast<double>(count)))
    throw UserError(concat(c.op.opcode, " reads index ", index, "\n  expected 0 to ", count - 1));
  return static_cast<size_t>(index);
}

Kernel find_kernel(std::string_view opcode) {
  const auto found = std::ranges::find(kKernels, opcode, &Row::opcode);
  if (found != std::end(kKernels)) return found->kernel;
  const Kernel kernel = find_part_kernel(opcode);
  return kernel ? kernel : find_canonical_kernel(opcode);
}

}  // namespace sfsdp::ir::interp
