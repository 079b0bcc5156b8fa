// SPDX-License-Identifier: BSD-3-Clause
// Every rule of ir/atenset.def against LibTorch's own shape functions: random calls are traced on meta tensors, and the
// verifier must agree with the types that LibTorch gave, and with no others.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <doctest/doctest.h>

#include <array>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/capture/tracer.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/shape_rules.h"
#include "sfsdp/ir/verifier.h"

namespace sfsdp::capture {
namespace {

using at::Tensor;
using Sizes = std::vector<int64_t>;

// Random choices, and meta tensors that are inputs of the trace.
class Caller {
 public:
  Caller(uint64_t seed, Tracer& tracer) : engine_(seed), tracer_(tracer) {}

  int64_t in(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  bool chance(int percent) { return in(1, 100) <= percent; }
  int64_t size() { return chance(5) ? 0 : chance(20) ? 1 : in(2, 5); }
  Sizes sizes(int64_t fewest = 0, int64_t most = 4) {
    Sizes sizes(static_cast<size_t>(in(fewest, most)));
    for (int64_t& s : sizes) s = size();
    return sizes;
  }
  at::ScalarType floating() { return std::array{at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}[pick(4)]; }
  at::ScalarType any() {
    return std::array{at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kLong,
                      at::kInt,   at::kShort,    at::kChar, at::kByte,   at::kBool}[pick(10)];
  }
  int64_t dim(const Sizes& sizes) {
    const auto rank = std::max<int64_t>(static_cast<int64_t>(sizes.size()), 1);
    return in(-rank, rank - 1);
  }
  at::Scalar number() { return chance(50) ? at::Scalar(in(-3, 3)) : at::Scalar(0.5); }

  Tensor tensor(const Sizes& sizes, at::ScalarType dtype) {
    Tensor t = at::empty(sizes, at::TensorOptions(dtype).device(at::kMeta));
    const std::string name = "x" + std::to_string(inputs_++);
    ir::Op* op = tracer_.graph.add("input", {}, {{name, type_of(t)}});
    op->section = ir::Section::Init;
    op->attrs["name"] = name;
    tracer_.declare(t, op->result());
    return t;
  }
  Tensor floats(const Sizes& sizes) { return tensor(sizes, floating()); }
  // Of sizes that broadcast to these.
  Tensor smaller(Sizes sizes, at::ScalarType dtype) {
    for (int64_t& s : sizes)
      if (chance(20)) s = 1;
    if (chance(20)) sizes.clear();
    if (!sizes.empty() && chance(20)) sizes.erase(sizes.begin());
    return tensor(sizes, dtype);
  }

 private:
  size_t pick(int64_t count) { return static_cast<size_t>(in(0, count - 1)); }
  std::mt19937_64 engine_;
  Tracer& tracer_;
  int inputs_ = 0;
};

using Call = std::function<void(Caller&)>;

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
        x.repeat_interleave(1, dim), at::cat({x, x}, dim), at::stack({x, x}, dim), x.cumsum(dim);
        x.index_select(dim, c.tensor({c.in(1, 4)}, at::kLong)), x.sort(dim), x.topk(c.in(0, size), dim);
        x.gather(dim, c.tensor(x.sizes().vec(), at::kLong));
        x.scatter_add(dim, c.tensor(x.sizes().vec(), at::kLong), x);
        x.scatter(dim, c.tensor(x.sizes().vec(), at::kLong), x),
            x.scatter(dim, c.tensor(x.sizes().vec(), at::kLong), 1);
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
        const int64_t groups = c.in(1, 2), in = groups * c.in(1, 2), out = groups * c.in(1, 2), s = c.in(1, 2);
        const bool transposed = c.chance(40);
        const Sizes weight = transposed ? Sizes{in, out / groups, 3, 2} : Sizes{out, in / groups, 3, 2};
        const auto dtype = c.floating();
        const Tensor x = c.tensor({2, in, 7, 6}, dtype), w = c.tensor(weight, dtype);
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
        Sizes sizes = c.sizes(1);
        for (int64_t& s : sizes) s = std::max<int64_t>(s, 1);
        const Sizes normalized(sizes.end() - c.in(1, static_cast<int64_t>(sizes.size())), sizes.end());
        const Tensor x = c.floats(sizes), w = c.tensor(normalized, x.scalar_type());
        const auto [y, mean, rstd] = at::native_layer_norm(x, normalized, w, w, 1e-5);
        at::native_layer_norm_backward(y, x, normalized, mean, rstd, w, w, {true, c.chance(50), c.chance(50)});
      },
      [](Caller& c) {
        const int64_t groups = c.in(1, 2), channels = groups * c.in(1, 3);
        const Tensor x = c.floats({2, channels, 5});
        at::native_group_norm(x, {}, {}, 2, channels, 5, groups, 1e-5);
      },
      [](Caller& c) {
        const int64_t rows = c.in(1, 6), width = c.in(1, 5);
        Sizes ids = c.sizes(0, 3);
        const Tensor i = c.tensor(ids, c.chance(50) ? at::kLong : at::kInt);
        const Tensor y = at::embedding(c.floats({rows, width}), i);
        at::embedding_dense_backward(y, i, rows, -1, false);
      },
  };
  return calls;
}

// The types with one thing changed, none of which the verifier may take for right.
void expect_wrong(ir::Graph& graph, ir::Value* value, Caller& c) {
  const ir::Type right = value->type();
  ir::Type wrong = right;
  wrong.strides.clear();
  if (right.dims.empty() || c.chance(30))
    wrong.dims.push_back({.size = 3, .split = {}, .padded = false});
  else
    ++wrong.dims[static_cast<size_t>(c.in(0, static_cast<int64_t>(right.dims.size()) - 1))].size;
  value->set_type(wrong);
  CHECK_MESSAGE(!ir::verify(graph).empty(), "not refused: ", ir::print(*value->producer()));
  value->set_type(right);
}

bool has_rule(const ir::Op& op) {
  const ir::OpRow* row = op.opcode.row();
  return row && ir::is_aten(op.opcode) && row->rule != ir::no_rule;
}

void compare(const std::vector<Call>& calls, std::map<const ir::OpRow*, int>& compared) {
  for (size_t i = 0; i < calls.size(); ++i) {
    for (uint64_t round = 0; round < 40; ++round) {
      Tracer tracer;
      Caller caller(1000 * i + round, tracer);
      try {
        tracer.run([&] { calls[i](caller); });
      } catch (const c10::Error&) {  // LibTorch refuses the dtype; what was traced before is compared
      } catch (const UserError&) {
      }
      const auto diagnostics = ir::verify(tracer.graph);
      CHECK_MESSAGE(diagnostics.empty(), ir::to_string(diagnostics), "\n", ir::print(tracer.graph));
      if (!diagnostics.empty()) break;
      for (const auto& op : tracer.graph.ops()) {
        if (!has_rule(*op)) continue;
        if (++compared[op->opcode.row()] % 8 == 0 && op->result()->type().kind == ir::Type::Kind::Tensor)
          expect_wrong(tracer.graph, op->result(), caller);
      }
    }
  }
}

TEST_CASE("aten rules: the verifier takes the types that LibTorch gives, and no others") {
  std::map<const ir::OpRow*, int> compared;
  for (const auto* calls : {&calls_of_several(), &calls_of_one(), &shape_calls(), &layer_calls()})
    compare(*calls, compared);
  // Recorded in other forms, or only drawn by initialisers.
  const std::set<std::string> apart = {"aten.native_dropout",   "aten.random.*",        "aten.cauchy",
                                       "aten.exponential",      "aten.geometric",       "aten.log_normal",
                                       "aten.poisson",          "aten._standard_gamma", "aten._sample_dirichlet",
                                       "aten.dropout",          "aten.reshape",         "aten.lift_fresh",
                                       "aten.scatter_reduce.*", "aten.alias",           "aten.detach"};
  for (const ir::OpRow& row : ir::opset())
    if (ir::is_aten(row.name) && row.rule != ir::no_rule && !apart.contains(std::string(row.name)))
      CHECK_MESSAGE(compared[&row] >= 8, row.name, " was compared ", compared[&row], " times");
}

// The dispatcher's own marks, of every op that a trace can record.
TEST_CASE("aten rows say of each op that draws or gives a view that it does") {
  // Of kinds of tensors that no trace holds: sparse, nested, forward-mode; and what the trace itself resolves.
  const std::set<std::string> foreign = {"_fw_primal",
                                         "_make_dual",
                                         "_indices",
                                         "_values",
                                         "indices",
                                         "values",
                                         "crow_indices",
                                         "col_indices",
                                         "ccol_indices",
                                         "row_indices",
                                         "_nested_get_values",
                                         "_nested_view_from_buffer",
                                         "_nested_view_from_jagged",
                                         "_sparse_broadcast_to",
                                         "_test_autograd_multiple_dispatch_view",
                                         "slice_inverse",
                                         "_fused_sdp_choice"};
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) continue;
    const std::string base = name.name.substr(6);
    if (base.ends_with('_') || name.overload_name == "out" || name.overload_name.ends_with("_out")) continue;
    ir::Op recorded;
    recorded.opcode = concat("aten.", base, name.overload_name.empty() ? "" : ".", name.overload_name);
    CAPTURE(recorded.opcode);
    const auto& schema = op->schema();
    const auto* in = schema.arguments().empty() ? nullptr : schema.arguments()[0].alias_info();
    const auto* out = schema.returns().empty() ? nullptr : schema.returns()[0].alias_info();
    const bool view = in && out && !in->isWrite() && !out->isWrite();
    const ir::OpRow* row = ir::find_row(recorded.opcode);
    if (view && !foreign.contains(base)) CHECK((row && row->alias == ir::Alias::ViewOfFirst));
    const bool on_cpu = op->hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
                        op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
    const bool draws = op->hasTag(at::Tag::nondeterministic_seeded) && on_cpu;
    if (draws && !base.starts_with("_scaled_dot_product") && !foreign.contains(base)) CHECK(ir::is_random(recorded));
    if (row && row->alias == ir::Alias::ViewOfFirst && base != "_unsafe_view") CHECK(view);
  }
}

}  // namespace
}  // namespace sfsdp::capture
