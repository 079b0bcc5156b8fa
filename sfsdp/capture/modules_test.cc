// SPDX-License-Identifier: BSD-3-Clause
// What modules are made of, captured forward and backward: the graph runs to the bits of eager LibTorch, and each op
// gives the type, strides included, that the trace said.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/module.h>

#include <functional>
#include <map>

#include "sfsdp/base/check.h"
#include "sfsdp/capture/capture_step.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/exec/reference/reference_executor.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/verifier.h"

namespace sfsdp::capture {
namespace modules_test {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Sizes = std::vector<int64_t>;
using Forward = std::function<Tensor(const Tensors& params, const Tensors& batch)>;

struct Case {
  std::string name;
  std::vector<Sizes> params;  // what gradients are taken of: weights, and inputs
  Forward forward;
  Tensors batch = {};
  double tolerance = 0;  // relative; 0: bit for bit
};

struct Params : torch::nn::Module {
  Tensors list;
};

Tensor loss_of(const Tensor& out) { return out.to(at::kFloat).square().mean(); }

std::map<std::string, Tensor> eager_gradients(const Case& c, Tensors params, Tensor& loss) {
  for (Tensor& p : params) p = p.clone().set_requires_grad(true);
  at::manual_seed(5);
  loss = loss_of(c.forward(params, c.batch));
  const Tensors gradients = torch::autograd::grad({loss}, params, {}, false, false, /*allow_unused=*/true);
  std::map<std::string, Tensor> by_name;
  for (size_t i = 0; i < gradients.size(); ++i)
    if (gradients[i].defined()) by_name["p" + std::to_string(i)] = gradients[i];
  return by_name;
}

// Strides of dimensions of size 1, and of nothing, address nothing.
std::string described(const ir::Type& type) {
  ir::Type canonical = type;
  int64_t dense = 1;
  bool contiguous = true;
  for (size_t d = type.dims.size(); d-- > 0 && !type.strides.empty();) {
    if (type.dims[d].size > 1 && type.strides[d] != dense) contiguous = false;
    if (type.dims[d].size == 1) canonical.strides[d] = 0;
    dense *= type.dims[d].size;
  }
  if (contiguous) canonical.strides.clear();
  return concat(canonical);
}

void expect_equal(const Case& c, const Tensor& got, const Tensor& expected) {
  if (c.tolerance == 0)
    CHECK(at::equal(got, expected));
  else
    CHECK(at::allclose(got, expected, c.tolerance, c.tolerance * expected.abs().max().item<double>()));
}

void expect_captured_as_eager(const Case& c, at::ScalarType dtype) {
  CAPTURE(c.name);
  CAPTURE(dtype);
  at::manual_seed(3);
  auto module = std::make_shared<Params>();
  Tensors values;
  for (size_t i = 0; i < c.params.size(); ++i) {
    values.push_back(at::randn(c.params[i]).to(dtype));
    module->list.push_back(module->register_parameter("p" + std::to_string(i), values.back().clone()));
  }
  Tensor expected_loss;
  const auto expected = eager_gradients(c, values, expected_loss);

  const auto state = take_state(*module);
  const auto loss = [&](const Batch& batch) { return LossValue{loss_of(c.forward(module->list, batch)), {}}; };
  const CapturedStep step = capture_step(*module, state, loss, c.batch, {});
  CHECK(ir::to_string(ir::verify(step.graph)) == "");
  exec::ReferenceExecutor executor(step.graph, step.constants, {}, {}, exec::Rng::Eager);
  for (const StateTensor& s : state) executor.state[s.name] = s.value;
  std::map<std::string, Tensor> gradients;
  executor.on_op = [&](const ir::Op& op, const Tensors& results) {
    if (op.is("gradient")) gradients[op.attr<std::string>("param")] = results[0];
    for (size_t i = 0; i < results.size(); ++i) {
      CAPTURE(ir::print(op));
      CHECK(described(type_of(results[i])) == described(op.result(static_cast<int>(i))->type()));
    }
  };
  at::manual_seed(5);
  expect_equal(c, executor.run({c.batch}, {})[0], expected_loss);
  REQUIRE(gradients.size() == expected.size());
  for (const auto& [name, gradient] : expected) {
    CAPTURE(name);
    expect_equal(c, gradients.at(name), gradient);
  }
}

void expect_all(const std::vector<Case>& cases) {
  for (const Case& c : cases)
    for (const auto dtype : {at::kFloat, at::kBFloat16}) expect_captured_as_eager(c, dtype);
}

// f of one tensor.
Case unary(const std::string& name, const Sizes& sizes, std::function<Tensor(const Tensor&)> f) {
  return {name, {sizes}, [f](const Tensors& p, const Tensors&) { return f(p[0]); }};
}
Case binary(const std::string& name, std::function<Tensor(const Tensor&, const Tensor&)> f) {
  return {name, {{3, 4}, {3, 4}}, [f](const Tensors& p, const Tensors&) { return f(p[0], p[1]); }};
}
Tensor ids(std::vector<int64_t> values) { return at::tensor(values, at::kLong); }

TEST_CASE("activations") {
  const Sizes s = {3, 4, 6};
  expect_all({
      unary("gelu", s, [](const Tensor& x) { return at::gelu(x); }),
      unary("gelu tanh", s, [](const Tensor& x) { return at::gelu(x, "tanh"); }),
      unary("silu", s, [](const Tensor& x) { return at::silu(x); }),
      unary("relu6", s, [](const Tensor& x) { return at::relu6(x); }),
      unary("leaky_relu", s, [](const Tensor& x) { return at::leaky_relu(x); }),
      unary("elu", s, [](const Tensor& x) { return at::elu(x); }),
      unary("hardswish", s, [](const Tensor& x) { return at::hardswish(x); }),
      unary("mish", s, [](const Tensor& x) { return at::mish(x); }),
      unary("log_sigmoid", s, [](const Tensor& x) { return at::log_sigmoid(x); }),
      unary("glu", s, [](const Tensor& x) { return at::glu(x, 1); }),
      unary("softmax", s, [](const Tensor& x) { return at::softmax(x, -1); }),
      unary("log_softmax", s, [](const Tensor& x) { return at::log_softmax(x, 1); }),
      unary("dropout", s, [](const Tensor& x) { return at::dropout(x, 0.3, true); }),
      unary("swiglu in place", s, [](const Tensor& x) { return at::silu(x).mul_(x); }),
      unary("nan_to_num", s, [](const Tensor& x) { return at::log(x).nan_to_num(0.5); }),
      {"prelu", {{3, 4, 5}, {4}}, [](const Tensors& p, const Tensors&) { return at::prelu(p[0], p[1]); }},
  });
}

TEST_CASE("losses") {
  const Tensor targets = ids({1, 0, 3, 2}), padded = ids({1, 0, 3, -100});
  const Forward smooth = [](const Tensors& p, const Tensors& b) {
    return at::cross_entropy_loss(p[0], b[0], {}, at::Reduction::Mean, -100, 0.1);
  };
  expect_all({
      {"cross_entropy, ignore_index",
       {{4, 5}},
       [](const Tensors& p, const Tensors& b) { return at::cross_entropy_loss(p[0], b[0]); },
       {padded}},
      {"cross_entropy, label smoothing", {{4, 5}}, smooth, {targets}},
      {"cross_entropy of pixels",
       {{2, 5, 3, 3}},
       [](const Tensors& p, const Tensors& b) { return at::cross_entropy_loss(p[0], b[0]); },
       {at::arange(18).view({2, 3, 3}) % 5}},
      {"ctc, lengths as numbers",
       {{6, 2, 5}},
       [](const Tensors& p, const Tensors& b) {
         return at::ctc_loss(at::log_softmax(p[0].to(at::kFloat), 2), b[0], {6, 5}, {3, 2}, 0, at::Reduction::None);
       },
       {ids({1, 2, 3, 4, 1, 2}).view({2, 3})}},
      binary("mse", [](const Tensor& a, const Tensor& b) { return at::mse_loss(a, b); }),
      binary("l1", [](const Tensor& a, const Tensor& b) { return at::l1_loss(a, b); }),
      binary("smooth_l1", [](const Tensor& a, const Tensor& b) { return at::smooth_l1_loss(a, b); }),
      binary("huber", [](const Tensor& a, const Tensor& b) { return at::huber_loss(a, b); }),
      binary("bce with logits",
             [](const Tensor& a, const Tensor& b) { return at::binary_cross_entropy_with_logits(a, b.sigmoid()); }),
      binary("bce",
             [](const Tensor& a, const Tensor& b) { return at::binary_cross_entropy(a.sigmoid(), b.sigmoid()); }),
      binary("kl_div",
             [](const Tensor& a, const Tensor& b) { return at::kl_div(at::log_softmax(a, 1), at::softmax(b, 1)); }),
      binary("cosine_similarity", [](const Tensor& a, const Tensor& b) { return at::cosine_similarity(a, b); }),
  });
}

TEST_CASE("normalisation") {
  const Sizes image = {2, 4, 5, 5};
  expect_all({
      {"layer_norm",
       {{2, 3, 8}, {8}, {8}},
       [](const Tensors& p, const Tensors&) { return at::layer_norm(p[0], {8}, p[1], p[2]); }},
      {"rms_norm",
       {{2, 3, 8}, {8}},
       [](const Tensors& p, const Tensors&) { return at::rms_norm(p[0], {8}, p[1], 1e-5); }},
      {"group_norm",
       {image, {4}, {4}},
       [](const Tensors& p, const Tensors&) { return at::group_norm(p[0], 2, p[1], p[2]); }},
      {"instance_norm",
       {image, {4}, {4}},
       [](const Tensors& p, const Tensors&) {
         return at::instance_norm(p[0], p[1], p[2], {}, {}, true, 0.1, 1e-5, false);
       }},
      {"batch_norm",
       {image, {4}, {4}},
       [](const Tensors& p, const Tensors&) {
         return at::batch_norm(p[0], p[1], p[2], {}, {}, true, 0.1, 1e-5, false);
       }},
      {"weight_norm",
       {{3, 4}, {3, 1}},
       [](const Tensors& p, const Tensors&) { return at::_weight_norm(p[0], p[1], 0); }},
  });
}

TEST_CASE("images: convolutions, pools, padding, resizing, channels_last") {
  const Sizes image = {2, 4, 8, 8};
  const auto last = [](const Tensor& x) { return x.contiguous(at::MemoryFormat::ChannelsLast); };
  expect_all({
      {"conv1d",
       {{2, 4, 9}, {6, 4, 3}, {6}},
       [](const Tensors& p, const Tensors&) { return at::conv1d(p[0], p[1], p[2], 2, 1); }},
      {"conv2d, groups",
       {image, {6, 2, 3, 3}, {6}},
       [](const Tensors& p, const Tensors&) { return at::conv2d(p[0], p[1], p[2], 1, 1, 1, 2); }},
      {"conv2d, channels_last",
       {image, {6, 4, 3, 3}, {6}},
       [=](const Tensors& p, const Tensors&) { return at::conv2d(last(p[0]), p[1], p[2]); }},
      {"conv_transpose2d",
       {image, {4, 3, 3, 3}, {6}},
       [](const Tensors& p, const Tensors&) { return at::conv_transpose2d(p[0], p[1], p[2], 2, 1, 1, 2); }},
      unary("max_pool2d", image, [](const Tensor& x) { return at::max_pool2d(x, 2); }),
      unary("avg_pool2d", image, [](const Tensor& x) { return at::avg_pool2d(x, 2); }),
      unary("adaptive_avg_pool2d", image,
            [](const Tensor& x) {
              return at::adaptive_avg_pool2d(x, {3, 2});
            }),
      unary("adaptive_avg_pool2d, channels_last", image,
            [=](const Tensor& x) {
              return at::adaptive_avg_pool2d(last(x), {3, 2});
            }),
      unary("upsample_nearest2d", image,
            [](const Tensor& x) {
              return at::upsample_nearest2d(x, {16, 16});
            }),
      unary("pad", image,
            [](const Tensor& x) {
              return at::pad(x, {1, 2, 0, 1}, "constant", 0.5);
            }),
      unary("reflection_pad2d", image,
            [](const Tensor& x) {
              return at::pad(x, {1, 2, 1, 1}, "reflect");
            }),
      unary("replication_pad2d", image,
            [](const Tensor& x) {
              return at::pad(x, {1, 2, 1, 1}, "replicate");
            }),
      unary("pixel_shuffle", image, [](const Tensor& x) { return at::pixel_shuffle(x, 2); }),
      unary("unfold", image,
            [](const Tensor& x) {
              return at::im2col(x, {3, 3}, {1, 1}, {1, 1}, {2, 2});
            }),
  });
}

TEST_CASE("indexing, sorting, scans, products") {
  const Sizes s = {3, 4, 5};
  const Tensor rows = ids({0, 2, 2}), columns = ids({1, 0, 3, 2, 2, 1}).view({3, 2});
  expect_all({
      {"embedding",
       {{6, 4}},
       [](const Tensors& p, const Tensors& b) { return at::embedding(p[0], b[0], 0); },
       {columns}},
      {"gather", {{3, 4}}, [](const Tensors& p, const Tensors& b) { return at::gather(p[0], 1, b[0]); }, {columns}},
      {"scatter_add",
       {{3, 4}, {3, 2}},
       [](const Tensors& p, const Tensors& b) { return at::scatter_add(p[0], 1, b[0], p[1]); },
       {columns}},
      {"index_put",
       {{3, 4}, {3, 4}},
       [](const Tensors& p, const Tensors& b) { return p[0].index_put({b[0]}, p[1], true); },
       {rows}},
      {"index", {{3, 4}}, [](const Tensors& p, const Tensors& b) { return p[0].index({b[0]}); }, {rows}},
      {"one_hot", {{3, 4}}, [](const Tensors& p, const Tensors& b) { return p[0] * at::one_hot(b[0], 4); }, {rows}},
      unary("masked_fill", s, [](const Tensor& x) { return x.masked_fill(x > 0.5, 0.0); }),
      unary("clamp", s, [](const Tensor& x) { return at::clamp(x, -1, 1); }),
      unary("tril", {4, 4}, [](const Tensor& x) { return at::tril(x) + at::triu(x, 1) * 2; }),
      unary("cumsum", s, [](const Tensor& x) { return at::cumsum(x, 1); }),
      unary("sort", s, [](const Tensor& x) { return std::get<0>(at::sort(x, 1)); }),
      unary("topk", s, [](const Tensor& x) { return std::get<0>(at::topk(x, 2, 1)); }),
      unary("max, std, norm", s, [](const Tensor& x) { return at::max(x) + at::std(x) + at::norm(x); }),
      unary("norm of order 3", s, [](const Tensor& x) { return at::norm(x, 3); }),
      unary("flip and roll", s, [](const Tensor& x) { return at::flip(x, {1}) + at::roll(x, {1}, {2}); }),
      {"einsum",
       {{2, 3, 4}, {2, 4, 5}},
       [](const Tensors& p, const Tensors&) {
         return at::einsum("bij,bjk->bik", {p[0], p[1]});
       }},
      {"addmm", {{5}, {3, 4}, {4, 5}}, [](const Tensors& p, const Tensors&) { return at::addmm(p[0], p[1], p[2]); }},
      {"bilinear",
       {{3, 4}, {3, 5}, {6, 4, 5}, {6}},
       [](const Tensors& p, const Tensors&) { return at::bilinear(p[0], p[1], p[2], p[3]); }},
  });
}

TEST_CASE("attention: causal, masked, grouped heads, dropout, torch::nn::MultiheadAttention") {
  const std::vector<Sizes> heads = {{2, 4, 5, 8}, {2, 4, 5, 8}, {2, 4, 5, 8}},
                           grouped = {{2, 4, 5, 8}, {2, 2, 5, 8}, {2, 2, 5, 8}};
  const auto attend = [](bool masked, double dropout, bool gqa) -> Forward {
    return [=](const Tensors& p, const Tensors&) {
      std::optional<Tensor> mask;
      if (masked) mask = at::ones({5, 5}, at::kBool).tril();
      return at::scaled_dot_product_attention(p[0], p[1], p[2], mask, dropout, !masked, std::nullopt, gqa);
    };
  };
  const Forward self_attention = [](const Tensors& p, const Tensors&) {
    namespace F = torch::nn::functional;
    const F::MultiheadAttentionForwardFuncOptions options(8, 2, p[1], p[2], {}, {}, false, 0.0, p[3], p[4]);
    return std::get<0>(F::multi_head_attention_forward(p[0], p[0], p[0], options));
  };
  expect_all({
      {"causal", heads, attend(false, 0, false)},
      {"masked", heads, attend(true, 0, false)},
      {"grouped heads", grouped, attend(false, 0, true)},
      {"dropout", heads, attend(false, 0.3, false)},
      {"multi_head_attention", {{5, 2, 8}, {24, 8}, {24}, {8, 8}, {8}}, self_attention},
  });
}

// On the CPU, LibTorch multiplies all time steps' inputs at once; it asks for the device, so a trace multiplies them
// one by one, and oneDNN's LSTM sums in another order still: n·eps over some 10 products of 4 terms each.
TEST_CASE("recurrent cells are captured as plain ops") {
  const auto rnn = [](int64_t gates, auto f) {
    return Case{"", {{5, 2, 3}, {1, 2, 4}, {gates * 4, 3}, {gates * 4, 4}, {gates * 4}, {gates * 4}}, f, {}, 1e-5};
  };
  expect_captured_as_eager(
      rnn(3,
          [](const Tensors& p, const Tensors&) {
            return std::get<0>(at::gru(p[0], p[1], {p[2], p[3], p[4], p[5]}, true, 1, 0.0, true, false, false));
          }),
      at::kFloat);
  expect_captured_as_eager(rnn(4,
                               [](const Tensors& p, const Tensors&) {
                                 return std::get<0>(at::lstm(p[0], {p[1], p[1]}, {p[2], p[3], p[4], p[5]}, true, 1, 0.0,
                                                             true, false, false));
                               }),
                           at::kFloat);
}

}  // namespace modules_test
}  // namespace sfsdp::capture
