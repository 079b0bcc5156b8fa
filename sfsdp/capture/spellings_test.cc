// SPDX-License-Identifier: BSD-3-Clause
// What users spell by hand, captured and written in canonical ops, runs to the bits of eager LibTorch.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/capture/capture_step.h"
#include "sfsdp/exec/reference/reference_executor.h"
#include "sfsdp/ir/canonical/decompose.h"
#include "sfsdp/passes/pass_manager.h"

namespace sfsdp::capture {
namespace {

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
       "cross_entropy 1 cross_entropy_backward 1 linear 1 linear_dw 1"},
      {"smoothing",
       {{5, 6}},
       [=](W w, const Tensor& x) {
         return at::cross_entropy_loss(at::linear(x, w[0]).view({-1, 5}).to(at::kFloat), targets, {}, 1, -100, 0.1);
       },
       {2, 3, 6},
       "left_aten._log_softmax 1 left_aten._log_softmax_backward_data 1 left_aten.nll_loss_backward 1 "
       "left_aten.nll_loss_forward 1 left_aten.sum 1 left_aten.sum.dim_IntList 1 left_for_other_readers 1 "
       "linear 1 linear_dw 1"},
  });
}

}  // namespace
}  // namespace sfsdp::capture
