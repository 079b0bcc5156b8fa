// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/aten_calls_torch.h"

namespace sfsdp::testing {
namespace {

using at::Tensor;
using Sizes = std::vector<int64_t>;

Call unary(Tensor (*f)(const Tensor&)) {
  return [f](Caller& c) { f(c.tensor(c.sizes(), c.any())); };
}
Call unary_float(Tensor (*f)(const Tensor&)) {
  return [f](Caller& c) { f(c.floats(c.sizes())); };
}
Call binary(Tensor (*f)(const Tensor&, const Tensor&)) {
  return [f](Caller& c) {
    const Sizes sizes = c.sizes();
    f(c.smaller(sizes, c.any()), c.smaller(sizes, c.any()));
  };
}
Call with_number(Tensor (*f)(const Tensor&, const at::Scalar&)) {
  return [f](Caller& c) { f(c.tensor(c.sizes(), c.any()), c.number()); };
}
// f of a tensor, one of its dimensions, and whether that stays.
Call reduction(const std::function<void(const Tensor&, int64_t, bool)>& f) {
  return [f](Caller& c) {
    Sizes sizes = c.sizes();
    for (int64_t& s : sizes) s = std::max<int64_t>(s, 1);
    f(c.floats(sizes), c.dim(sizes), c.chance(50));
  };
}
// f of a tensor of at least one dimension, none empty, and one of them.
Call along(const std::function<void(Caller&, const Tensor&, int64_t)>& f) {
  return [f](Caller& c) {
    Sizes sizes = c.sizes(1);
    for (int64_t& s : sizes) s = std::max<int64_t>(s, 1);
    f(c, c.floats(sizes), c.dim(sizes));
  };
}
struct Attention {
  Tensor q, k, v;
};
Attention attention(Caller& c) {
  const int64_t batch = c.in(1, 3), kv_heads = c.in(1, 2), heads = kv_heads * c.in(1, 2), width = 8;
  const auto dtype = c.floating();
  const Sizes keys = {batch, kv_heads, c.in(1, 5), width};
  return {c.tensor({batch, heads, c.in(1, 5), width}, dtype), c.tensor(keys, dtype), c.tensor(keys, dtype)};
}

const std::vector<Call>& calls_of_several() {
  static const std::vector<Call> calls = {
      binary([](const Tensor& a, const Tensor& b) { return at::add(a, b); }),
      binary([](const Tensor& a, const Tensor& b) { return at::mul(a, b); }),
      binary([](const Tensor& a, const Tensor& b) { return at::div(a, b); }),
      binary([](const Tensor& a, const Tensor& b) { return at::pow(a, b); }),
      binary([](const Tensor& a, const Tensor& b) { return at::remainder(a, b); }),
      binary([](const Tensor& a, const Tensor& b) { return at::fmod(a, b); }),
      binary([](const Tensor& a, const Tensor& b) { return at::maximum(a, b); }),
      binary([](const Tensor& a, const Tensor& b) { return at::minimum(a, b); }),
      binary([](const Tensor& a, const Tensor& b) { return at::eq(a, b); }),
      binary([](const Tensor& a, const Tensor& b) { return at::ne(a, b); }),
      binary([](const Tensor& a, const Tensor& b) { return at::lt(a, b); }),
      binary([](const Tensor& a, const Tensor& b) { return at::le(a, b); }),
      binary([](const Tensor& a, const Tensor& b) { return at::gt(a, b); }),
      binary([](const Tensor& a, const Tensor& b) { return at::ge(a, b); }),
      binary([](const Tensor& a, const Tensor& b) { return at::logical_and(a, b); }),
      binary([](const Tensor& a, const Tensor& b) { return at::logical_or(a, b); }),
      [](Caller& c) {
        const Sizes sizes = c.sizes();
        const Tensor a = c.smaller(sizes, c.floating()), b = c.smaller(sizes, c.floating());
        at::sub(a, b);
        at::rsub(a, b);
      },
      [](Caller& c) {  // numbers of the model's code
        const Tensor x = c.tensor(c.sizes(), c.any());
        const Tensor y = x.scalar_type() == at::kBool ? x.to(at::kInt) : x;
        y + 2.5, y * 2, y - 1, y / 3, 1.5 - y;
      },
      with_number([](const Tensor& a, const at::Scalar& s) { return at::pow(a, s); }),
      with_number([](const Tensor& a, const at::Scalar& s) { return at::pow(s, a); }),
      with_number([](const Tensor& a, const at::Scalar& s) { return at::mul(a, s); }),
      with_number([](const Tensor& a, const at::Scalar& s) { return at::add(a, s); }),
      with_number([](const Tensor& a, const at::Scalar& s) { return at::div(a, s); }),
      with_number([](const Tensor& a, const at::Scalar& s) { return at::remainder(a, s); }),
      with_number([](const Tensor& a, const at::Scalar& s) { return at::ne(a, s); }),
      with_number([](const Tensor& a, const at::Scalar& s) { return at::clamp(a, s, s); }),
      [](Caller& c) {
        const Sizes sizes = c.sizes();
        at::where(c.smaller(sizes, at::kBool), c.smaller(sizes, c.any()), c.smaller(sizes, c.any()));
      },
      [](Caller& c) {
        const Sizes sizes = c.sizes();
        c.floats(sizes).masked_fill(c.smaller(sizes, at::kBool), 1.0);
      },
      [](Caller& c) {
        const Sizes sizes = c.sizes();
        const auto dtype = c.floating();
        const Tensor g = c.tensor(sizes, dtype), x = c.tensor(sizes, dtype);
        at::gelu_backward(g, x), at::silu_backward(g, x), at::sigmoid_backward(g, x), at::tanh_backward(g, x);
        at::threshold_backward(g, x, 0);
      },
  };
  return calls;
}

const std::vector<Call>& calls_of_one() {
  static const std::vector<Call> calls = {
      unary([](const Tensor& x) { return at::logical_not(x); }),
      unary([](const Tensor& x) { return at::isnan(x); }),
      [](Caller& c) {
        const Sizes sizes = c.sizes();
        const Tensor a = c.tensor(sizes, at::kLong), b = c.tensor(sizes, at::kLong);
        at::bitwise_not(a), at::bitwise_and(a, b), at::bitwise_or(a, b), at::bitwise_xor(a, b);
      },
      unary([](const Tensor& x) { return at::exp(x); }),
      unary([](const Tensor& x) { return at::log(x); }),
      unary([](const Tensor& x) { return at::sin(x); }),
      unary([](const Tensor& x) { return at::cos(x); }),
      unary([](const Tensor& x) { return at::tanh(x); }),
      unary([](const Tensor& x) { return at::sqrt(x); }),
      unary([](const Tensor& x) { return at::rsqrt(x); }),
      unary([](const Tensor& x) { return at::reciprocal(x); }),
      unary([](const Tensor& x) { return at::sigmoid(x); }),
      unary([](const Tensor& x) { return at::erf(x); }),
      unary([](const Tensor& x) { return at::erfinv(x); }),
      unary([](const Tensor& x) { return at::clone(x); }),
      unary([](const Tensor& x) { return at::zeros_like(x); }),
      unary_float([](const Tensor& x) { return at::neg(x); }),
      unary_float([](const Tensor& x) { return at::abs(x); }),
      unary_float([](const Tensor& x) { return at::relu(x); }),
      unary_float([](const Tensor& x) { return at::silu(x); }),
      unary_float([](const Tensor& x) { return at::gelu(x); }),
      unary_float([](const Tensor& x) { return at::rand_like(x); }),
      unary_float([](const Tensor& x) { return at::randn_like(x); }),
      unary_float([](const Tensor& x) { return at::bernoulli(x); }),
      unary_float([](const Tensor& x) { return at::bernoulli(x, 0.5); }),
      unary_float([](const Tensor& x) { return at::clone(x).uniform_(); }),
      unary_float([](const Tensor& x) { return at::clone(x).normal_(); }),
      unary_float([](const Tensor& x) { return at::clone(x).zero_(); }),
      unary_float([](const Tensor& x) { return at::clone(x).fill_(2.0); }),
      unary_float([](const Tensor& x) { return at::clone(x).copy_(x + 1); }),
      unary_float([](const Tensor& x) { return std::get<0>(at::native_dropout(x, 0.5, true)); }),
      [](Caller& c) {
        const Tensor x = c.tensor(c.sizes(2), c.any());
        at::tril(x), at::triu(x), at::flip(x, {0}), at::roll(x, {1}, {1});
      },
      [](Caller& c) {
        const Tensor x = c.tensor(c.sizes(), c.any());
        const auto other = c.any();
        x.to(other), at::empty_like(x, other), at::ones_like(x, other), at::full_like(x, 2, other);
      },
      [](Caller& c) {
        const Sizes sizes = c.sizes();
        const auto options = at::TensorOptions(c.floating()).device(at::kMeta);
        at::empty(sizes, options), at::zeros(sizes, options), at::ones(sizes, options), at::full(sizes, 2.0, options);
        at::rand(sizes, options), at::randn(sizes, options), at::zeros(sizes, at::kMeta), at::full(sizes, 2, at::kMeta);
      },
      [](Caller& c) {
        const int64_t start = c.in(-3, 3), step = c.in(1, 3);
        at::arange(c.in(0, 9), at::kMeta), at::arange(start, start + c.in(0, 9), step, at::kMeta);
        at::arange(0.5 * static_cast<double>(c.in(0, 9)), at::kMeta);
      },
  };
  return calls;
}

const std::vector<Call>& shape_calls() {
  static const std::vector<Call> calls = {
      along([](Caller& c, const Tensor& x, int64_t dim) {
        const int64_t size = x.size(dim);
        x.select(dim, c.in(-size, size - 1)), x.slice(dim, c.in(-4, 2), c.in(-4, 9), c.in(1, 3));
        x.slice(dim, 1), x.unsqueeze(dim), x.squeeze(dim), x.squeeze(), x.transpose(dim, 0), x.unbind(dim);
        x.split(c.in(1, 3), dim), x.split_with_sizes({size - size / 2, size / 2}, dim), x.flatten(), x.alias(),
            x.detach();
        x.repeat_interleave(1, dim), at::cat({x, x}, dim), at::stack({x, x}, dim), x.cumsum(dim), x.cumprod(dim);
        x.index_select(dim, c.tensor({c.in(1, 4)}, at::kLong)), x.sort(dim), x.topk(c.in(0, size), dim);
        x.gather(dim, c.tensor(x.sizes().vec(), at::kLong));
        x.scatter_add(dim, c.tensor(x.sizes().vec(), at::kLong), x);
        x.scatter(dim, c.tensor(x.sizes().vec(), at::kLong), x),
            x.scatter(dim, c.tensor(x.sizes().vec(), at::kLong), 1);
        x.scatter_reduce(dim, c.tensor(x.sizes().vec(), at::kLong), x, c.chance(50) ? "sum" : "amax");
        x.index_add(dim, c.tensor({size}, at::kLong), x);
        at::cat({x, c.tensor(x.sizes().vec(), x.scalar_type()), c.tensor({0}, x.scalar_type())}, dim);
      }),
      along([](Caller& c, const Tensor& x, int64_t dim) {  // backward of views, and writes into a part
        const int64_t size = x.size(dim), start = c.in(0, size - 1);
        at::select_backward(x.select(dim, start), x.sizes(), dim, start);
        at::slice_backward(x.slice(dim, start), x.sizes(), dim, start, size, 1);
        at::select_scatter(x, x.select(dim, start), dim, start),
            at::slice_scatter(x, x.slice(dim, start), dim, start, size);
        x.clone().select(dim, start).zero_();
        x.index_put({c.tensor({2}, at::kLong)}, c.tensor({}, x.scalar_type()));
      }),
      along([](Caller& c, const Tensor& x, int64_t) {
        Sizes order(static_cast<size_t>(x.dim())), wide = x.sizes().vec(), pad = {c.in(0, 2), c.in(0, 2)};
        for (size_t i = 0; i < order.size(); ++i) order[i] = (static_cast<int64_t>(i) + c.in(0, 0) + 1) % x.dim();
        x.permute(order), at::constant_pad_nd(x, pad), x.view(-1), x.reshape({-1, 1});
        wide.insert(wide.begin(), c.in(1, 3));
        wide.back() = c.chance(50) ? -1 : wide.back();
        x.expand(wide), x.repeat(Sizes(order.size() + 1, 2)), at::_unsafe_view(x, {1, x.numel()});
        at::_reshape_alias(x, {x.numel(), 1, 1}, {1, 1, 1}), x.as_strided({x.numel() / 2}, {2}, x.numel() % 2);
      }),
      [](Caller& c) { c.floats(c.sizes(0, 2)).t(); },
      reduction([](const Tensor& x, int64_t d, bool keep) {
        at::sum(x), at::sum(x, {d}, keep), at::sum(x, {d}, keep, at::kDouble), at::mean(x), at::mean(x, {d}, keep);
        at::amax(x, {d}, keep), at::amin(x, {d}, keep), at::max(x), at::min(x), at::argmax(x, d, keep), at::argmin(x);
        at::var(x, at::OptionalIntArrayRef({d}), 1, keep), at::std(x, at::OptionalIntArrayRef({d}), 1, keep);
        at::_softmax(x, d, false), at::_log_softmax(x, d, false), at::_softmax_backward_data(x, x, d, x.scalar_type());
        at::_log_softmax_backward_data(x, x, d, x.scalar_type()), at::squeeze(x, Sizes{d});
        at::max(x, d, keep), at::min(x, d, keep), at::logsumexp(x, {d}, keep), at::prod(x, d, keep), at::prod(x);
        at::_safe_softmax(x, d);
      }),
      [](Caller& c) { at::sum(c.tensor(c.sizes(), c.any())), at::cumsum(c.tensor({3}, c.any()), 0); },
  };
  return calls;
}

const std::vector<Call>& layer_calls() {
  static const std::vector<Call> calls = {
      [](Caller& c) {
        const int64_t b = c.in(1, 3), m = c.size(), k = c.size(), n = c.size();
        const auto dtype = c.floating();
        const Tensor x = c.tensor({m, k}, dtype), y = c.tensor({k, n}, dtype);
        at::mm(x, y), at::addmm(c.tensor({n}, dtype), x, y), at::addmm(c.tensor({m, n}, dtype), x, y);
        const Tensor xs = c.tensor({b, m, k}, dtype), ys = c.tensor({b, k, n}, dtype);
        at::bmm(xs, ys), at::baddbmm(c.tensor({b, m, n}, dtype), xs, ys);
      },
      [](Caller& c) {
        const int64_t groups = c.in(1, 2), in = groups * c.in(1, 4), out = groups * c.in(1, 2), s = c.in(1, 2);
        const bool transposed = c.chance(40);
        const Sizes weight = transposed ? Sizes{in, out / groups, 3, 2} : Sizes{out, in / groups, 3, 2};
        const auto dtype = c.floating();
        const Tensor x = c.tensor({4, in, 7, 6}, dtype), w = c.tensor(weight, dtype);
        const Sizes stride = {s, 2}, padding = {c.in(0, 1), 1}, dilation = {c.in(1, 2), 1}, extra = {0, 0};
        const Tensor y = at::convolution(x, w, {}, stride, padding, dilation, transposed, extra, groups);
        at::convolution_backward(y, x, w, at::OptionalIntArrayRef({out}), stride, padding, dilation, transposed, extra,
                                 groups, {true, c.chance(50), c.chance(50)});
      },
      [](Caller& c) {
        const Attention a = attention(c);
        const auto [out, sums] = at::_scaled_dot_product_flash_attention_for_cpu(a.q, a.k, a.v, 0.0, false);
        at::_scaled_dot_product_flash_attention_for_cpu_backward(out, a.q, a.k, a.v, out, sums, 0.0, false);
      },
      [](Caller& c) {
        const int64_t n = c.in(1, 5), classes = c.in(1, 5), reduction = c.in(0, 2);
        const Tensor x = c.floats({n, classes}), target = c.tensor({n}, at::kLong);
        const auto weight = c.chance(50) ? std::optional<Tensor>(c.tensor({classes}, x.scalar_type())) : std::nullopt;
        const auto [loss, count] = at::nll_loss_forward(x, target, weight, reduction, -100);
        at::nll_loss_backward(loss, x, target, weight, reduction, -100, count);
      },
      [](Caller& c) {
        const int64_t n = c.in(1, 4), classes = c.in(1, 5), h = c.in(1, 3), w = c.in(1, 4), reduction = c.in(0, 2);
        const Tensor x = c.floats({n, classes, h, w}), target = c.tensor({n, h, w}, at::kLong);
        const auto weight = c.chance(50) ? std::optional<Tensor>(c.tensor({classes}, x.scalar_type())) : std::nullopt;
        const auto [loss, count] = at::nll_loss2d_forward(x, target, weight, reduction, -100);
        at::nll_loss2d_backward(loss, x, target, weight, reduction, -100, count);
      },
      [](Caller& c) {
        const Tensor x = c.floats({2, c.in(1, 3), c.in(1, 4)});
        const int64_t size = c.in(1, 7);
        const Tensor y = at::upsample_nearest1d(x, {size});
        at::upsample_nearest1d_backward(y, {size}, x.sizes());
      },
      [](Caller& c) {
        Sizes sizes = c.sizes(1);
        for (int64_t& s : sizes) s = std::max<int64_t>(s, 1);
        const Sizes normalized(sizes.end() - c.in(1, static_cast<int64_t>(sizes.size())), sizes.end());
        const Tensor x = c.floats(sizes), w = c.tensor(normalized, x.scalar_type());
        const auto [y, mean, rstd] = at::native_layer_norm(x, normalized, w, w, 1e-5);
        at::native_layer_norm_backward(y, x, normalized, mean, rstd, w, w, {true, c.chance(50), c.chance(50)});
      },
      [](Caller& c) {
        const int64_t groups = c.in(1, 2), channels = groups * c.in(1, 3);
        const Tensor x = c.floats({4, channels, 5});
        at::native_group_norm(x, {}, {}, 4, channels, 5, groups, 1e-5);
      },
      [](Caller& c) {
        const int64_t rows = c.in(1, 6), width = c.in(1, 5);
        Sizes ids = c.sizes(0, 3);
        const Tensor i = c.tensor(ids, c.chance(50) ? at::kLong : at::kInt);
        const Tensor y = at::embedding(c.floats({rows, width}), i);
        at::embedding_dense_backward(y, i, rows, -1, false);
      },
      [](Caller& c) {  // groups of as many rows each, as an end that is drawn may leave rows that no group has
        const int64_t groups = c.in(1, 3), rows = groups * c.in(2, 3), k = 8 * c.in(1, 3), n = 8 * c.in(1, 3);
        const auto dtype = c.floating();
        const Tensor ends = at::arange(1, groups + 1, at::kInt).mul(rows / groups);
        at::_grouped_mm(c.tensor({rows, k}, dtype), c.tensor({groups, k, n}, dtype), ends);
        at::_grouped_mm(c.tensor({rows, k}, dtype).t(), c.tensor({rows, n}, dtype), ends);
      },
      [](Caller& c) {  // as mixtures of experts sort their rows
        const Tensor x = c.tensor(c.sizes(), c.any());
        at::floor_divide(x, 3), x.new_zeros({2, 3}, c.any());
      },
  };
  return calls;
}

const std::vector<Call>& index_calls() {
  static const std::vector<Call> calls = {
      along([](Caller& c, const Tensor& x, int64_t dim) {  // indexes of fewer places than there are
        x.index_add(dim, c.tensor({1}, at::kLong), x.narrow(dim, x.size(dim) - 1, 1));
        Sizes few = x.sizes().vec();  // of which the others stay as they are
        for (int64_t& n : few) n = c.in(1, n);
        const Tensor some = c.tensor(few, at::kLong);
        x.gather(dim, some), x.scatter_add(dim, some, x), x.scatter(dim, some, x), x.scatter(dim, some, 1),
            x.scatter_reduce(dim, some, x, "sum");
      }),
  };
  return calls;
}

}  // namespace

std::vector<Call> aten_calls() {
  std::vector<Call> calls;
  for (const auto* some : {&calls_of_several(), &calls_of_one(), &shape_calls(), &layer_calls(), &index_calls()})
    calls.insert(calls.end(), some->begin(), some->end());
  return calls;
}

}  // namespace sfsdp::testing
