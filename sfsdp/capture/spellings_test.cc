// SPDX-License-Identifier: BSD-3-Clause
// What users spell by hand, captured and written in canonical ops, runs to the bits of eager LibTorch.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/capture/capture_step.h"
#include "sfsdp/exec/reference/reference_executor.h"
#include "sfsdp/ir/canonical/decompose.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/testing/interp/interpreter.h"

namespace sfsdp::capture {
namespace spellings_test {

using at::Tensor;
using Sizes = std::vector<int64_t>;

// What a user writes: parameters by name, and forward.
struct Net : torch::nn::Module {
  using Forward = std::function<Tensor(const std::vector<Tensor>& w, const Tensor& x)>;

  Net(const std::vector<Sizes>& sizes, Forward f) : forward(std::move(f)) {
    for (size_t i = 0; i < sizes.size(); ++i)
      weights.push_back(register_parameter(concat("w", i), at::randn(sizes[i]) * 0.5));
  }
  std::vector<Tensor> weights;
  Forward forward;
};

// Ops of the loss below, which are none of the module.
const std::set<std::string> kOfLoss = {"left_aten.mean"};

struct Spelling {
  std::string name;
  std::vector<Sizes> weights;
  Net::Forward forward;
  Sizes batch;
  std::string ops;
};

Tensor loss_of(const Tensor& out) { return out.to(at::kFloat).square().mean(); }

// How many of each canonical op there are, and what was left: "linear 1 linear_dw 1".
std::string canonical_ops(ir::Graph& graph) {
  const auto reports = passes::run_passes(graph, passes::parse_passes("canonicalise"));
  std::vector<std::string> counts;
  for (const auto& [name, count] : reports[0].metrics.counts())
    if (ir::is_canonical(name) || (name.starts_with("left_") && count > 0 && !kOfLoss.contains(name)))
      counts.push_back(concat(name, ' ', count));
  return join(counts, " ");
}

void expect_canonical(const Spelling& s, at::ScalarType dtype) {
  CAPTURE(s.name);
  CAPTURE(dtype);
  at::manual_seed(3);
  auto net = std::make_shared<Net>(s.weights, s.forward);
  net->to(dtype);
  const Tensor x = at::randn(s.batch).to(dtype);
  std::vector<Tensor> weights;
  for (const Tensor& w : net->parameters()) weights.push_back(w.detach().clone().set_requires_grad(true));
  at::manual_seed(5);
  const Tensor expected_loss = loss_of(s.forward(weights, x));
  const auto expected = torch::autograd::grad({expected_loss}, weights);

  const auto state = take_state(*net);
  const auto loss = [&](const Batch& batch) { return LossValue{loss_of(s.forward(net->parameters(), batch[0])), {}}; };
  CapturedStep step = capture_step(*net, state, loss, {x}, {});
  CHECK(canonical_ops(step.graph) == s.ops);
  exec::ReferenceExecutor executor(step.graph, step.constants, {}, {}, exec::Rng::Eager);
  for (const StateTensor& t : state) executor.state[t.name] = t.value;
  std::map<std::string, Tensor> gradients;
  executor.on_op = [&](const ir::Op& op, const std::vector<Tensor>& results) {
    if (op.is("gradient")) gradients[op.attr<std::string>("param")] = results[0];
  };
  at::manual_seed(5);
  CHECK(at::equal(executor.run({{x}}, {})[0], expected_loss));
  for (size_t i = 0; i < expected.size(); ++i) CHECK(at::equal(gradients.at(concat("w", i)), expected[i]));
}

// Where LibTorch promotes dtypes, an op computed in the dtype of its first operand would give other bits, or none.
struct Mixed {
  std::string name;
  Net::Forward forward;
  std::string f32, bf16;  // canonical ops of a module of that dtype, beside linear and linear_dw
};

void expect_mixed(const std::vector<Mixed>& mixed) {
  for (const Mixed& m : mixed) {
    const auto with = [&](const std::string& ops) {
      std::vector<std::string> all = {"linear 1", "linear_dw 1"};
      for (const std::string& op : split(ops, ',')) all.push_back(op);
      std::erase(all, "");
      std::ranges::sort(all);
      return Spelling{m.name, {{12, 12}}, m.forward, {2, 5, 12}, join(all, " ")};
    };
    expect_canonical(with(m.f32), at::kFloat);
    expect_canonical(with(m.bf16), at::kBFloat16);
  }
}

void expect_all(const std::vector<Spelling>& spellings) {
  for (const Spelling& s : spellings)
    for (const auto dtype : {at::kFloat, at::kBFloat16}) expect_canonical(s, dtype);
}

using W = const std::vector<Tensor>&;

Tensor rotate_half(const Tensor& x) {
  const auto halves = x.chunk(2, -1);
  return at::cat({-halves[1], halves[0]}, -1);
}

Tensor angles(int64_t positions, int64_t width) {
  return at::outer(at::arange(positions).to(at::kFloat), at::arange(width).to(at::kFloat).mul(-0.3).exp());
}

TEST_CASE("canonical ops: rotary embedding is one op, and its inverse, however it is spelled") {
  const char* kRope = "linear 1 linear_dw 1 rope 1 rope_inverse 1";
  const Sizes batch = {2, 5, 12};
  const std::vector<Sizes> weights = {{12, 12}};
  const auto heads = [](W w, const Tensor& x) { return at::linear(x, w[0]).view({2, 5, 3, 4}); };
  expect_all({
      {"halves, as Hugging Face has it", weights,
       [=](W w, const Tensor& x) {
         const Tensor q = heads(w, x).transpose(1, 2);
         const Tensor a = angles(5, 2), both = at::cat({a, a}, -1);
         const Tensor cos = both.cos().to(q.scalar_type()), sin = both.sin().to(q.scalar_type());
         return q * cos + rotate_half(q) * sin;
       },
       batch, kRope},
      {"halves, as Hugging Face has it, sliced", weights,
       [=](W w, const Tensor& x) {
         const Tensor q = heads(w, x).transpose(1, 2);
         const Tensor a = angles(5, 2), both = at::cat({a, a}, -1);
         const Tensor cos = both.cos().to(q.scalar_type()), sin = both.sin().to(q.scalar_type());
         return q * cos + at::cat({-q.slice(-1, 2), q.slice(-1, 0, 2)}, -1) * sin;
       },
       batch, kRope},
      {"halves, as Hugging Face has it, sliced, in the order of Python", weights,
       [=](W w, const Tensor& x) {
         const Tensor q = heads(w, x).transpose(1, 2);
         const Tensor a = angles(5, 2), both = at::cat({a, a}, -1);
         const Tensor cos = both.cos().to(q.scalar_type()), sin = both.sin().to(q.scalar_type());
         const Tensor direct = q * cos, first = q.slice(-1, 0, 2), second = q.slice(-1, 2);
         return direct + at::cat({-second, first}, -1) * sin;
       },
       batch, kRope},
      {"halves, in parts, sliced", weights,
       [=](W w, const Tensor& x) {
         const Tensor q = heads(w, x);
         const Tensor a = angles(5, 2).view({1, 5, 1, 2});
         const Tensor f = q.to(at::kFloat), h0 = f.slice(-1, 0, 2), h1 = f.slice(-1, 2);
         const Tensor cos = a.cos(), sin = a.sin();
         return at::cat({h0 * cos - h1 * sin, h1 * cos + h0 * sin}, -1).type_as(q);
       },
       batch, kRope},
      {"halves, as torchtitan", weights,
       [=](W w, const Tensor& x) {
         const Tensor q = heads(w, x);
         const Tensor a = angles(5, 2), both = at::cat({a, a}, -1).view({1, 5, 1, 4});
         const Tensor f = q.to(at::kFloat);
         return (f * both.cos() + rotate_half(f) * both.sin()).type_as(q);
       },
       batch, kRope},
      {"halves, in parts", weights,
       [=](W w, const Tensor& x) {
         const Tensor q = heads(w, x);
         const Tensor a = angles(5, 2).view({1, 5, 1, 2});
         const auto h = q.to(at::kFloat).chunk(2, -1);
         const Tensor cos = a.cos(), sin = a.sin();
         return at::cat({h[0] * cos - h[1] * sin, h[1] * cos + h[0] * sin}, -1).type_as(q);
       },
       batch, kRope},
      {"complex, as Meta", weights,
       [=](W w, const Tensor& x) {
         const Tensor q = heads(w, x);
         const Tensor a = angles(5, 2);
         const Tensor freqs = at::polar(at::ones_like(a), a).view({1, 5, 1, 2});
         const Tensor c = at::view_as_complex(q.to(at::kFloat).reshape({2, 5, 3, -1, 2}));
         return at::view_as_real(c * freqs).flatten(3).type_as(q);
       },
       batch, kRope},
      {"slices", weights,
       [=](W w, const Tensor& x) {
         const Tensor q = heads(w, x);
         const Tensor a = angles(5, 2).view({1, 5, 1, 2});
         const Tensor f = q.to(at::kFloat);
         const Tensor even = f.slice(-1, 0, 4, 2), odd = f.slice(-1, 1, 4, 2);
         const Tensor cos = a.cos(), sin = a.sin();
         return at::stack({even * cos - odd * sin, even * sin + odd * cos}, -1).flatten(-2).type_as(q);
       },
       batch, kRope},
  });
}

TEST_CASE("canonical ops: what mixes dtypes as none of them does is left as it is") {
  const auto turned = [](const Tensor& x, at::ScalarType tables) {
    const Tensor a = angles(5, 6), both = at::cat({a, a}, -1);
    return (x * both.cos().to(tables) + rotate_half(x) * both.sin().to(tables)).to(x.scalar_type()).tanh();
  };
  const auto normed = [](const Tensor& x) { return x * at::rsqrt(x.pow(2).mean(-1, true) + 1e-5); };
  expect_mixed({
      {"rotary embedding, tables in f64",
       [=](W w, const Tensor& x) { return turned(at::linear(x, w[0]), at::kDouble); }, "", ""},
      {"rotary embedding, tables in f32", [=](W w, const Tensor& x) { return turned(at::linear(x, w[0]), at::kFloat); },
       "rope 1,rope_inverse 1", ""},
      {"rotary embedding, tables with more dimensions",
       [=](W w, const Tensor& x) {
         const Tensor h = at::linear(x, w[0])[0], a = angles(10, 6).view({2, 5, 6}), both = at::cat({a, a}, -1);
         return h * both.cos().to(h.scalar_type()) + rotate_half(h) * both.sin().to(h.scalar_type());
       },
       "left_aten.sum.dim_IntList 2", "left_aten.sum.dim_IntList 2"},
      {"a norm with a weight in f32, after the cast",
       [=](W w, const Tensor& x) {
         const Tensor h = at::linear(x, w[0]);
         return (normed(h.to(at::kFloat)).to(h.scalar_type()) * at::linspace(0.5, 2, 12)).to(h.scalar_type());
       },
       "rms_norm 1,rms_norm_backward 1", "rms_norm 1,rms_norm_backward 1"},
      {"a norm with a weight in f64",
       [=](W w, const Tensor& x) {
         const Tensor h = at::linear(x, w[0]);
         return (normed(h.to(at::kFloat)) * at::linspace(0.5, 2, 12).to(at::kDouble)).to(h.scalar_type());
       },
       "rms_norm 1,rms_norm_backward 1", "left_aten.mean.dim 1,left_aten.sum.dim_IntList 1"},
      {"a norm of f32 that is cast after it",
       [=](W w, const Tensor& x) {
         const Tensor h = x.to(at::kFloat) + at::linear(x, w[0]).to(at::kFloat);
         return at::rms_norm(h, {12}, at::linspace(0.5, 2, 12), 1e-5).to(at::kBFloat16);
       },
       "rms_norm 1,rms_norm_backward 1", "rms_norm 1,rms_norm_backward 1"},
      {"a norm that stays in f32",
       [=](W w, const Tensor& x) { return normed(at::linear(x, w[0]).to(at::kFloat)).tanh(); },
       "rms_norm 1,rms_norm_backward 1", "left_aten.mean.dim 1,left_aten.sum.dim_IntList 1"},
      {"a norm cast to another half",
       [=](W w, const Tensor& x) { return normed(at::linear(x, w[0]).to(at::kFloat)).to(at::kHalf); },
       "rms_norm 1,rms_norm_backward 1", "left_aten.mean.dim 1,left_aten.sum.dim_IntList 1"},
  });
}

// LibTorch lays a result out as its first operand that has strides, so these are laid out as the factor in front, otherwise
// than the decompositions' results. What reads them next, through a view, tells.
TEST_CASE("canonical ops: factors in the other order are left where that is another layout") {
  const auto heads = [](const Tensor& w, const Tensor& x) {
    return at::linear(x, w).view({2, 5, 3, 4}).transpose(1, 2);
  };
  const auto normed = [](const Tensor& x) {
    const Tensor f = x.to(at::kFloat);
    return (at::rsqrt(f.pow(2).mean(-1, true) + 1e-5) * f).type_as(x);
  };
  const auto turned = [](const Tensor& x) {
    const Tensor a = angles(5, 2), both = at::cat({a, a}, -1).expand({2, 3, 5, 4}).contiguous();
    return both.cos().to(x.scalar_type()) * x + both.sin().to(x.scalar_type()) * rotate_half(x);
  };
  const Sizes batch = {2, 5, 12};
  expect_all({
      {"a norm of queries and keys, before attention by hand",
       {{12, 12}, {12, 12}},
       [=](W w, const Tensor& x) {
         const Tensor q = normed(heads(w[0], x)), k = normed(heads(w[1], x));
         return at::matmul((at::matmul(q, k.transpose(-2, -1)) * 0.5).softmax(-1), k);
       },
       batch,
       "left_aten._softmax 1 left_aten._softmax_backward_data 1 left_aten.mean.dim 2 linear 2 linear_dw 2 matmul 6"
       " rms_norm_backward 2"},
      {"rotary embedding, tables as large as the heads, before attention by hand",
       {{12, 12}, {12, 12}},
       [=](W w, const Tensor& x) {
         const Tensor q = turned(heads(w[0], x)), k = turned(heads(w[1], x));
         return at::matmul((at::matmul(q, k.transpose(-2, -1)) * 0.5).softmax(-1), k);
       },
       batch,
       "left_aten._softmax 1 left_aten._softmax_backward_data 1 linear 2 linear_dw 2 matmul 6 rope_inverse 2"},
      {"a norm that is read as memory",
       {{12, 12}},
       [=](W w, const Tensor& x) {
         return normed(heads(w[0], x)).as_strided({2, 60}, {60, 1}) * at::linspace(-1, 2, 60).to(x.scalar_type());
       },
       batch,
       "left_aten.as_strided_scatter 1 left_aten.mean.dim 1 linear 1 linear_dw 1 rms_norm_backward 1"},
      {"a norm on one layout, which either order gives",
       {{12, 12}},
       [=](W w, const Tensor& x) { return normed(at::linear(x, w[0])); },
       batch,
       "linear 1 linear_dw 1 rms_norm 1 rms_norm_backward 1"},
  });
}

TEST_CASE("canonical ops: norms whose input or weight gets no gradient") {
  expect_all({
      {"input without gradient",
       {{6}},
       [](W w, const Tensor& x) { return at::rms_norm(x, {6}, w[0], 1e-5); },
       {2, 3, 6},
       "rms_norm 1 rms_norm_backward 1"},
      {"input without gradient, by hand",
       {{6}},
       [](W w, const Tensor& x) {
         const Tensor f = x.to(at::kFloat);
         return w[0] * (f * at::rsqrt(f.pow(2).mean(-1, true) + 1e-5)).type_as(x);
       },
       {2, 3, 6},
       "rms_norm 1 rms_norm_backward 1"},
      {"frozen weight",
       {{6, 6}},
       [](W w, const Tensor& x) { return at::rms_norm(at::linear(x, w[0]), {6}, at::ones({6}, w[0].options()), 1e-5); },
       {2, 3, 6},
       "linear 1 linear_dw 1 rms_norm 1 rms_norm_backward 1"},
      {"layer norm without bias",
       {{6, 6}, {6}},
       [](W w, const Tensor& x) { return at::layer_norm(at::linear(x, w[0]), {6}, w[1], {}); },
       {2, 3, 6},
       "layer_norm 1 layer_norm_backward 1 linear 1 linear_dw 1"},
      {"layer norm, input without gradient",
       {{6}, {6}},
       [](W w, const Tensor& x) { return at::layer_norm(x, {6}, w[0], w[1]); },
       {2, 3, 6},
       "layer_norm 1 layer_norm_backward 1"},
      {"division",
       {{6, 6}, {6}},
       [](W w, const Tensor& x) {
         const Tensor f = at::linear(x, w[0]).to(at::kFloat);
         return (f / at::sqrt(f.pow(2).mean(-1, true) + 1e-5)).type_as(x) * w[1];
       },
       {2, 3, 6},
       "left_aten.mean.dim 1 left_aten.sum.dim_IntList 2 linear 1 linear_dw 1"},
      {"power",
       {{6, 6}, {6}},
       [](W w, const Tensor& x) {
         const Tensor f = at::linear(x, w[0]).to(at::kFloat);
         return (f * at::pow(f.pow(2).mean(-1, true) + 1e-5, -0.5)).type_as(x) * w[1];
       },
       {2, 3, 6},
       "left_aten.mean.dim 1 left_aten.sum.dim_IntList 2 linear 1 linear_dw 1"},
  });
}

TEST_CASE("canonical ops: products") {
  expect_all({
      {"linear bias 3d",
       {{5, 6}, {5}},
       [](W w, const Tensor& x) { return at::linear(x, w[0], w[1]); },
       {2, 3, 6},
       "left_aten.sum.dim_IntList 1 linear 1 linear_dw 1"},
      {"linear bias 3d on a gradient",
       {{6, 6}, {5, 6}, {5}},
       [](W w, const Tensor& x) { return at::linear(at::linear(x, w[0]), w[1], w[2]); },
       {2, 3, 6},
       "left_aten.sum.dim_IntList 1 linear 2 linear_dw 2 linear_dx 1"},
      {"linear bias of transposed",
       {{6, 6}, {5, 6}, {5}},
       [](W w, const Tensor& x) { return at::linear(at::linear(x, w[0]).transpose(0, 1), w[1], w[2]); },
       {2, 3, 6},
       "left_aten.sum.dim_IntList 1 linear 2 linear_dw 2 linear_dx 1"},
      {"addmm conv1d",
       {{6, 6}, {6, 5}, {5}},
       [](W w, const Tensor& x) {
         return at::addmm(w[2], at::linear(x, w[0]).view({-1, 6}), w[1]).view({2, 3, 5});
       },
       {2, 3, 6},
       "left_aten.sum.dim_IntList 1 linear 2 linear_dw 1 matmul 2"},
      {"addmm 2d weight t",
       {{6, 6}, {5, 6}, {5}},
       [](W w, const Tensor& x) {
         return at::addmm(w[2], at::linear(x, w[0]).view({-1, 6}), w[1].t()).view({2, 3, 5});
       },
       {2, 3, 6},
       "left_aten.sum.dim_IntList 1 linear 2 linear_dw 2 linear_dx 1"},
      {"matmul with t, plus bias",
       {{6, 6}, {5, 6}, {5}},
       [](W w, const Tensor& x) { return at::matmul(at::linear(x, w[0]), w[1].t()) + w[2]; },
       {2, 3, 6},
       "left_aten.sum.dim_IntList 1 linear 2 linear_dw 2 linear_dx 1"},
      {"matmul with w",
       {{6, 6}, {6, 5}},
       [](W w, const Tensor& x) { return at::matmul(at::linear(x, w[0]), w[1]); },
       {2, 3, 6},
       "linear 2 linear_dw 1 matmul 2"},
      {"einsum",
       {{6, 6}, {5, 6}},
       [](W w, const Tensor& x) {
         return at::einsum("bsd,hd->bsh", {at::linear(x, w[0]), w[1]});
       },
       {2, 3, 6},
       "linear 1 linear_dw 1 matmul 3"},
      {"attention by hand",
       {{12, 12}, {12, 12}},
       [](W w, const Tensor& x) {
         const Tensor q = at::linear(x, w[0]).view({2, 5, 3, 4}).transpose(1, 2);
         const Tensor k = at::linear(x, w[1]).view({2, 5, 3, 4}).transpose(1, 2);
         const Tensor p = (at::matmul(q, k.transpose(-2, -1)) * 0.5).softmax(-1);
         return at::matmul(p, k);
       },
       {2, 5, 12},
       "left_aten._softmax 1 left_aten._softmax_backward_data 1 linear 2 linear_dw 2 matmul 6"},
      {"heads as einsum",
       {{6, 3, 4}},
       [](W w, const Tensor& x) {
         return at::einsum("bsd,dhe->bshe", {x, w[0]});
       },
       {2, 3, 6},
       "matmul 2"},
  });
}

TEST_CASE("canonical ops: dropout") {
  expect_all({
      {"dropout",
       {{6, 6}},
       [](W w, const Tensor& x) { return at::dropout(at::linear(x, w[0]), 0.3, true); },
       {2, 3, 6},
       "dropout 1 dropout_backward 1 linear 1 linear_dw 1"},
      {"by hand",
       {{6, 6}},
       [](W w, const Tensor& x) {
         const Tensor y = at::linear(x, w[0]);
         return y * at::bernoulli(at::full_like(y, 0.7)) / 0.7;
       },
       {2, 3, 6},
       "linear 1 linear_dw 1"},
  });
}

TEST_CASE("canonical ops: cross entropy") {
  const auto targets = at::tensor(std::vector<int64_t>{1, 2, -100, 0, 3, 4}, at::kLong);
  expect_all({
      {"cross entropy",
       {{5, 6}},
       [=](W w, const Tensor& x) {
         return at::cross_entropy_loss(at::linear(x, w[0]).view({-1, 5}), targets);
       },
       {2, 3, 6},
       "cross_entropy 1 cross_entropy_backward 1 linear 1 linear_dw 1"},
      {"f32",
       {{5, 6}},
       [=](W w, const Tensor& x) {
         return at::cross_entropy_loss(at::linear(x, w[0]).view({-1, 5}).to(at::kFloat), targets);
       },
       {2, 3, 6},
       "cross_entropy 1 cross_entropy_backward 1 linear 1 linear_dw 1"},
      {"z",
       {{5, 6}},
       [=](W w, const Tensor& x) {
         const Tensor y = at::linear(x, w[0]).view({-1, 5}).to(at::kFloat);
         return at::cross_entropy_loss(y, targets) + 1e-4 * at::logsumexp(y, {-1}).square().mean();
       },
       {2, 3, 6},
       "cross_entropy 1 cross_entropy_backward 1 left_aten.logsumexp 1 linear 1 linear_dw 1"},
      {"smoothing",
       {{5, 6}},
       [=](W w, const Tensor& x) {
         return at::cross_entropy_loss(at::linear(x, w[0]).view({-1, 5}).to(at::kFloat), targets, {}, 1, -100, 0.1);
       },
       {2, 3, 6},
       "left_aten._log_softmax 1 left_aten._log_softmax_backward_data 1 "
       "left_aten.nll_loss_forward 1 left_aten.sum 1 left_aten.sum.dim_IntList 1 left_for_other_readers 1 "
       "linear 1 linear_dw 1"},
  });
}

// ---- what the interpreter computes for ops whose decomposition is one op of LibTorch's -----------------------------------

ir::interp::Array array_of(const Tensor& t) {
  const Tensor flat = t.to(at::kDouble).contiguous().view(-1);
  const double* data = flat.const_data_ptr<double>();
  return {t.scalar_type() == at::kLong ? ir::DType::i64 : ir::DType::f64, t.sizes().vec(), {data, data + flat.numel()}};
}

std::string text_of(at::IntArrayRef sizes) {
  std::vector<std::string> parts;
  for (const int64_t size : sizes) parts.push_back(concat(size));
  return concat("[", join(parts, ", "), "]");
}

// `call`, as "layer_norm %x, %w eps=0.5", of these inputs in doubles, against LibTorch's results; undefined: not compared.
void expect_interprets(const std::string& call, const std::map<std::string, Tensor>& inputs,
                       const std::vector<Tensor>& expected) {
  CAPTURE(call);
  const auto type = [](const Tensor& t) {
    if (!t.defined()) return std::string("token");
    return concat(t.scalar_type() == at::kLong ? "i64" : "f64", text_of(t.sizes()));
  };
  std::string text = "graph mesh [] view local\n";
  ir::interp::Inputs arrays;
  for (const auto& [name, value] : inputs) {
    text += concat("  %", name, " = input name=", name, " : ", type(value), "\n");
    arrays[name] = array_of(value);
  }
  std::vector<std::string> names, types;
  for (size_t i = 0; i < expected.size(); ++i) {
    names.push_back(concat("%result", i));
    types.push_back(type(expected[i]));
  }
  text += concat("fwd:\n  ", join(names, ", "), " = ", call, " : ", join(types, ", "), "\n");
  ir::Graph graph = ir::parse_or_throw(text);
  for (const auto& result : graph.ops().back()->results())
    if (expected[result->result_index()].defined()) graph.outputs.push_back(result.get());
  const auto run = ir::interp::run(graph, {arrays}, {.rounding = ir::interp::Rounding::None});
  size_t output = 0;
  for (const Tensor& value : expected) {
    if (!value.defined()) continue;
    const ir::interp::Array got = run.ranks[0].outputs[output++], want = array_of(value);
    REQUIRE(got.data.size() == want.data.size());
    for (size_t i = 0; i < want.data.size(); ++i) CHECK(std::abs(got.data[i] - want.data[i]) < 1e-10);
  }
}

Tensor doubles(at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble); }

TEST_CASE("the interpreter's attention is LibTorch's: grouped heads, causal, masked, scaled") {
  at::manual_seed(5);
  struct Form {
    int64_t groups, keys;
    bool causal, masked;
    double scale;  // 0: of the width
    bool documents = false;
  };
  for (const Form& f : {Form{4, 5, false, false, 0}, Form{2, 5, true, false, 0}, Form{1, 7, false, true, 0},
                        Form{2, 3, false, true, 0.3}, Form{4, 5, true, false, 0.7}, Form{2, 5, true, false, 0, true}}) {
    const int64_t queries = 5, width = 6;
    std::map<std::string, Tensor> in = {{"q", doubles({2, 4, queries, width})},
                                        {"k", doubles({2, f.groups, f.keys, width})},
                                        {"v", doubles({2, f.groups, f.keys, width})}};
    for (auto& [name, t] : in) t.requires_grad_();
    const Tensor k = in["k"].repeat_interleave(4 / f.groups, 1), v = in["v"].repeat_interleave(4 / f.groups, 1);
    const double scale = f.scale == 0 ? 1 / std::sqrt(static_cast<double>(width)) : f.scale;
    Tensor scores = at::matmul(in["q"], k.transpose(2, 3)) * scale;
    const Tensor mask = doubles({queries, f.keys});
    const Tensor later = at::ones({queries, f.keys}, at::kBool).triu(1);
    const Tensor documents = at::tensor({1, 1, 2, 2, 2, 0, 1, 1, 1, 2}, at::kLong).view({2, queries});
    const Tensor other = documents.unsqueeze(2).ne(documents.unsqueeze(1)).unsqueeze(1);
    if (f.causal) scores = scores.masked_fill(later, -std::numeric_limits<double>::infinity());
    if (f.masked) scores = scores + mask;
    if (f.documents) scores = scores.masked_fill(other, -std::numeric_limits<double>::infinity());
    const Tensor out = at::matmul(at::softmax(scores, -1), v), lse = at::logsumexp(scores, -1);
    const Tensor grad = doubles(out.sizes());
    const auto gradients = torch::autograd::grad({out}, {in["q"], in["k"], in["v"]}, {grad});
    for (auto& [name, t] : in) t = t.detach();
    std::string attrs = f.causal ? " is_causal=true" : "";
    if (f.scale != 0) attrs += concat(" scale=", f.scale);
    if (f.masked) in["mask"] = mask;
    if (f.documents) in["mask"] = documents, attrs += " documents=true";
    const std::string masked = f.masked || f.documents ? ", %mask" : "";
    expect_interprets(concat("sdpa %q, %k, %v", masked, attrs), in, {out.detach(), lse.detach()});
    in.insert({{"g", grad}, {"o", out.detach()}, {"lse", lse.detach()}});
    expect_interprets(concat("sdpa_backward %g, %q, %k, %v, %o, %lse", masked, " dropout_p=0.0",
                             f.causal ? "" : " is_causal=false", attrs),
                      in, gradients);
  }
}

TEST_CASE("the interpreter's layer norm is LibTorch's: over one dimension and two, with and without weight and bias") {
  at::manual_seed(6);
  for (const Sizes& shape : {Sizes{4}, Sizes{3, 4}})
    for (const bool has_weight : {true, false})
      for (const bool has_bias : {true, false}) {
        std::map<std::string, Tensor> in = {{"x", doubles({2, 3, 4})}};
        const Tensor w = has_weight ? doubles(shape) : Tensor(), b = has_bias ? doubles(shape) : Tensor();
        if (has_weight) in["w"] = w;
        if (has_bias) in["b"] = b;
        const std::string affine = concat(has_weight ? "%w" : "none", ", ", has_bias ? "%b" : "none");
        const std::string attrs = concat("normalized_shape=", text_of(shape));
        const auto [y, mean, rstd] = at::native_layer_norm(in["x"], shape, w, b, 0.25);
        expect_interprets(concat("layer_norm %x, ", affine, " eps=0.25 ", attrs), in, {y, mean, rstd});
        const Tensor g = doubles({2, 3, 4});
        const auto [dx, dw, db] =
            at::native_layer_norm_backward(g, in["x"], shape, mean, rstd, w, b, {true, has_weight, has_bias});
        in.insert({{"g", g}, {"mean", mean}, {"rstd", rstd}});
        expect_interprets(
            concat("layer_norm_backward %g, %x, %mean, %rstd, ", affine, " ", attrs, " output_mask=[true, ",
                   has_weight ? "true, " : "false, ", has_bias ? "true]" : "false]"),
            in, {dx, dw, db});
      }
}

TEST_CASE("the interpreter's embedding and its gradient are LibTorch's, of rows that are read twice and never") {
  at::manual_seed(7);
  const Tensor w = doubles({5, 3}), ids = at::tensor({4, 0, 4, 1, 0, 4}, at::kLong).view({2, 3}),
               g = doubles({2, 3, 3});
  expect_interprets("embedding %w, %ids", {{"w", w}, {"ids", ids}}, {at::embedding(w, ids)});
  expect_interprets("embedding_backward %g, %ids num_weights=5 padding_idx=-1 scale_grad_by_freq=false",
                    {{"g", g}, {"ids", ids}}, {at::embedding_dense_backward(g, ids, 5, -1, false)});
}

}  // namespace spellings_test
}  // namespace sfsdp::capture
