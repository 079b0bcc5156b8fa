// SPDX-License-Identifier: BSD-3-Clause
// Programs that no file of sfsdp has, of torch::nn's own modules, cut over tp by two lines: an MLP, an encoder with a decoder, a vision
// transformer, blocks of attention beside feed-forward, and one block that is used three times. All train as eager does over 20 steps.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <string>
#include <vector>

#include "sfsdp/models/loss.h"
#include "sfsdp/plan/verify/layouts.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing/parity_torch.h"

namespace sfsdp {
namespace unseen_models_parallel_test {

namespace nn = torch::nn;
using testing::eager, testing::expect_parity;

// B batch, S sequence, D model, H heads, V vocabulary.
constexpr int64_t kD = 16, kH = 4, kS = 8, kV = 32, kB = 24, kSteps = 20;

nn::Linear linear(int64_t from, int64_t to, bool bias = true) {
  return nn::Linear(nn::LinearOptions(from, to).bias(bias));
}
nn::LayerNorm layer_norm() { return nn::LayerNorm(nn::LayerNormOptions({kD})); }

// Queries of one sequence, keys and values of the same or another one.
struct MixImpl : nn::Module {
  static at::Tensor heads(const at::Tensor& x) { return x.view({x.size(0), x.size(1), kH, kD / kH}).transpose(1, 2); }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y, bool causal) {
    const at::Tensor o = at::scaled_dot_product_attention(heads(q(x)), heads(k(y)), heads(v(y)), {}, 0.0, causal);
    return out(o.transpose(1, 2).reshape({x.size(0), x.size(1), kD}));
  }
  nn::Linear q = register_module("q", linear(kD, kD)), k = register_module("k", linear(kD, kD, false)),
             v = register_module("v", linear(kD, kD)), out = register_module("out", linear(kD, kD));
};
TORCH_MODULE(Mix);

struct MlpImpl : nn::Module {
  at::Tensor forward(const at::Tensor& x) { return down(at::gelu(up(x))); }
  nn::Linear up = register_module("up", linear(kD, 4 * kD)), down = register_module("down", linear(4 * kD, kD));
};
TORCH_MODULE(Mlp);

struct EncoderDecoderImpl : nn::Module {
  at::Tensor forward(const at::Tensor& source, const at::Tensor& target) {
    at::Tensor e = table(source);
    at::Tensor h = norms[0](e);
    e = e + encoder(h, h, false);
    e = norms[2](e + encoder_mlp(norms[1](e)));
    at::Tensor d = table(target);
    h = norms[3](d);
    d = d + decoder(h, h, true);
    d = d + cross(norms[4](d), e, false);
    return head(d + decoder_mlp(norms[5](d)));
  }
  nn::Embedding table = register_module("table", nn::Embedding(kV, kD));
  Mix encoder = register_module("encoder", Mix()), decoder = register_module("decoder", Mix()),
      cross = register_module("cross", Mix());
  Mlp encoder_mlp = register_module("encoder_mlp", Mlp()), decoder_mlp = register_module("decoder_mlp", Mlp());
  std::vector<nn::LayerNorm> norms = {register_module("n0", layer_norm()), register_module("n1", layer_norm()),
                                      register_module("n2", layer_norm()), register_module("n3", layer_norm()),
                                      register_module("n4", layer_norm()), register_module("n5", layer_norm())};
  nn::Linear head = register_module("head", linear(kD, kV, false));
};
TORCH_MODULE(EncoderDecoder);

// Images [B, 3, 8, 8] as 16 patches, and a token that the classes are read from.
struct VisionImpl : nn::Module {
  VisionImpl() {
    token = register_parameter("token", torch::zeros({1, 1, kD}));
    places = register_parameter("places", torch::zeros({1, 17, kD}));
  }
  at::Tensor forward(const at::Tensor& images) {
    at::Tensor x = patches(images).flatten(2).transpose(1, 2);
    x = at::cat({token.expand({x.size(0), 1, kD}), x}, 1) + places;
    for (size_t i = 0; i < mixes.size(); ++i) {
      const at::Tensor h = before[i](x);
      x = x + mixes[i](h, h, false);
      x = x + mlps[i](after[i](x));
    }
    return head(last(x).select(1, 0));
  }
  nn::Conv2d patches = register_module("patches", nn::Conv2d(nn::Conv2dOptions(3, kD, 2).stride(2)));
  std::vector<Mix> mixes = {register_module("a0", Mix()), register_module("a1", Mix())};
  std::vector<Mlp> mlps = {register_module("m0", Mlp()), register_module("m1", Mlp())};
  std::vector<nn::LayerNorm> before = {register_module("b0", layer_norm()), register_module("b1", layer_norm())},
                             after = {register_module("c0", layer_norm()), register_module("c1", layer_norm())};
  nn::LayerNorm last = register_module("last", layer_norm());
  nn::Linear head = register_module("head", linear(kD, 8));
  at::Tensor token, places;
};
TORCH_MODULE(Vision);

// Attention beside feed-forward, as GPT-J has it; of several blocks, or of one that is used three times, as ALBERT has it.
struct BesideImpl : nn::Module {
  explicit BesideImpl(bool is_shared) : shared(is_shared) {}
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = table(ids);
    for (size_t i = 0; i < 3; ++i) {
      const size_t block = shared ? 0 : i % 2;
      const at::Tensor h = norms[block](x);
      x = x + mixes[block](h, h, true) + mlps[block](h);
    }
    return head(norms[2](x));
  }
  bool shared;
  nn::Embedding table = register_module("table", nn::Embedding(kV, kD));
  std::vector<Mix> mixes = {register_module("a0", Mix()), register_module("a1", Mix())};
  std::vector<Mlp> mlps = {register_module("m0", Mlp()), register_module("m1", Mlp())};
  std::vector<nn::LayerNorm> norms = {register_module("n0", layer_norm()), register_module("n1", layer_norm()),
                                      register_module("n2", layer_norm())};
  nn::Linear head = register_module("head", linear(kD, kV, false));
};
TORCH_MODULE(Beside);

Batch words(int64_t step, int64_t first, int64_t rows) {
  const at::Tensor ids = at::empty({rows, kS + 1}, at::kLong);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i <= kS; ++i)
      ids.mutable_data_ptr<int64_t>()[r * (kS + 1) + i] = (7 * step + 11 * (first + r) + i * i + 5 * i) % kV;
  return {ids.narrow(1, 0, kS).contiguous(), ids.narrow(1, 1, kS).contiguous()};
}
Batch pairs(int64_t step, int64_t first, int64_t rows) {
  const Batch b = words(step, first, rows);
  return {(b[0] * 3 + 1).remainder(kV), b[0], b[1]};
}
at::Tensor waves(int64_t step, std::vector<int64_t> shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return at::arange(count, at::kFloat).add(5.0 * static_cast<double>(step)).mul(0.37).sin().view(shape);
}
Batch images(int64_t step, int64_t first, int64_t rows) {
  return {waves(step, {kB, 3, 8, 8}).narrow(0, first, rows).contiguous(),
          (at::arange(first, first + rows, at::kLong) + step).remainder(8)};
}
Batch numbers(int64_t step, int64_t first, int64_t rows) {
  const at::Tensor all = waves(step, {kB, 2 * kD});
  return {all.narrow(0, first, rows).narrow(1, 0, kD).contiguous(),
          all.narrow(0, first, rows).narrow(1, kD, kD).contiguous()};
}

const std::vector<TensorParallelRule> kLayers = {{"*.q|k|v|up", Shard(0)}, {"*.out|down", Shard(1)}},
                                      kLayersAndWords = {
                                          {"*.q|k|v|up", Shard(0)}, {"*.out|down", Shard(1)}, {"table|head", Shard(0)}};

// On every mesh, with rows cut or whole. None of them is refused.
template <class Make, class Loss>
void expect_all(Make make, Loss loss, Batch (*batch)(int64_t, int64_t, int64_t),
                const std::vector<TensorParallelRule>& rules) {
  const auto reference = eager(
      make, loss, [&](int64_t step) { return batch(step, 0, kB); }, kSteps);
  for (const auto& axes : std::vector<std::vector<MeshAxis>>{{{"tp", 2}}, {{"tp", 4}}, {{"dp_shard", 2}, {"tp", 2}}})
    for (const bool rows : {false, true}) {
      CAPTURE(rows);
      const auto program =
          expect_parity(make, loss, batch, kB,
                        {init_device_mesh(axes), tensor_parallel(rules, {.sequence_parallel = rows})}, reference);
      const auto variant = program->first();
      CHECK(plan::verify_layouts(variant->graph) == "");
    }
}

const auto make_beside = [](bool shared) { return [shared] { return Beside(shared); }; };
const auto kNextWord = [](auto& model, const Batch& b) { return models::cross_entropy(model->forward(b[0]), b[1]); };

TEST_CASE("unseen models over tp: an MLP") {
  expect_all([] { return Mlp(); },
             [](auto& model, const Batch& b) { return (model->forward(b[0]) - b[1]).square().mean(); }, numbers,
             kLayers);
}

TEST_CASE("unseen models over tp: an encoder whose result a decoder attends to") {
  expect_all([] { return EncoderDecoder(); },
             [](auto& model, const Batch& b) { return models::cross_entropy(model->forward(b[0], b[1]), b[2]); }, pairs,
             kLayersAndWords);
}

TEST_CASE("unseen models over tp: a vision transformer, its patches a convolution") {
  expect_all([] { return Vision(); },
             [](auto& model, const Batch& b) { return at::cross_entropy_loss(model->forward(b[0]), b[1]); }, images,
             kLayers);
}

TEST_CASE("unseen models over tp: attention beside feed-forward") {
  expect_all(make_beside(false), kNextWord, words, kLayersAndWords);
}

// Each use adds to the same gradients, and the other block's weights get none.
TEST_CASE("unseen models over tp: one block that is used three times") {
  expect_all(make_beside(true), kNextWord, words, kLayersAndWords);
}

}  // namespace unseen_models_parallel_test
}  // namespace sfsdp
