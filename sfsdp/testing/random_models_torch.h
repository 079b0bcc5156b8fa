// SPDX-License-Identifier: BSD-3-Clause
// Language models of a few layers, drawn at random: what stands in a layer, its width, tied and frozen weights.
#pragma once

#include <ATen/ATen.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace sfsdp::testing {

class Draw {
 public:
  explicit Draw(uint64_t seed) : bits_(seed) {}
  int64_t below(int64_t n) { return static_cast<int64_t>(bits_() % static_cast<uint64_t>(n)); }
  bool once_in(int64_t n) { return below(n) == 0; }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[below(std::ssize(values))];
  }

 private:
  std::mt19937_64 bits_;
};

enum class Kind : uint8_t { Mlp, Gated, Attention, Mixer, Shared, GroupNorm, Pool, Scan };

struct NetArgs {
  int64_t dim = 8;
  int64_t more = 1;  // a feed-forward is 2 · dim + more wide
  std::vector<Kind> blocks;
  bool tied = false, frozen = false;
};

// reads_others: also blocks whose ops read other places than their own, or have no row.
inline NetArgs draw_net(Draw& draw, bool reads_others) {
  NetArgs args;
  args.dim = 6 + draw.below(9);
  const int64_t blocks = 1 + draw.below(4);
  for (int64_t i = 0; i < blocks; ++i)
    args.blocks.push_back(reads_others && draw.once_in(2)
                              ? draw.one_of({Kind::GroupNorm, Kind::Pool, Kind::Scan})
                              : draw.one_of({Kind::Mlp, Kind::Gated, Kind::Attention, Kind::Mixer, Kind::Shared}));
  args.tied = draw.once_in(4);
  args.frozen = draw.once_in(4);
  return args;
}

struct BlockImpl : torch::nn::Module {
  BlockImpl(Kind k, int64_t dim, int64_t more, const torch::nn::Linear& shared)
      : kind(k), norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({dim})))), out(shared) {
    constexpr int64_t kLength = 12;  // of the sequences
    const int64_t inner = kind == Kind::Attention ? dim : 2 * dim + more;
    const auto linear = [&](const char* name, int64_t from, int64_t to) {
      return register_module(name, torch::nn::Linear(torch::nn::LinearOptions(from, to).bias(false)));
    };
    if (kind == Kind::Mixer) out = linear("out", kLength, kLength);
    if (kind == Kind::GroupNorm)
      groups = register_module("groups", torch::nn::GroupNorm(torch::nn::GroupNormOptions(3, kLength)));
    if (kind == Kind::Mixer || kind == Kind::Shared || kind >= Kind::GroupNorm) return;
    out = linear("out", inner, dim);
    a = linear("a", dim, inner);
    if (kind != Kind::Mlp) b = linear("b", dim, inner);
    if (kind == Kind::Attention) c = linear("c", dim, inner);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = norm(x);
    switch (kind) {
      case Kind::Mlp: return x + out(at::gelu(a(h)));
      case Kind::Gated: return x + out(at::silu(a(h)) * b(h));
      case Kind::Attention: {
        const at::Tensor q = a(h).unsqueeze(1), k = b(h).unsqueeze(1), v = c(h).unsqueeze(1);
        return x + out(at::scaled_dot_product_attention(q, k, v, {}, 0.0, true).squeeze(1));
      }
      case Kind::Mixer: return x + out(h.transpose(1, 2)).transpose(1, 2);
      case Kind::GroupNorm: return x + out(groups(h));  // positions as channels
      case Kind::Pool: return x + out(at::avg_pool1d(h.transpose(1, 2), 3, 1, 1).transpose(1, 2));
      case Kind::Scan: return x + out(at::cumprod(at::sigmoid(h) + 0.5, 2));
      case Kind::Shared: break;
    }
    return x + out(at::tanh(h));
  }
  Kind kind;
  torch::nn::LayerNorm norm;
  torch::nn::GroupNorm groups = nullptr;
  torch::nn::Linear out, a = nullptr, b = nullptr, c = nullptr;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const NetArgs& args)
      : embedding(register_module("embedding", torch::nn::Embedding(29, args.dim))),
        shared(register_module("shared", torch::nn::Linear(args.dim, args.dim))) {
    auto layers = register_module("layers", std::make_shared<torch::nn::Module>());
    for (size_t i = 0; i < args.blocks.size(); ++i)
      blocks.push_back(layers->register_module(std::to_string(i), Block(args.blocks[i], args.dim, args.more, shared)));
    scale = register_parameter("scale", torch::ones({}));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({args.dim})));
    head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(args.dim, 29).bias(false)));
    if (args.tied) head->weight = embedding->weight;
    if (args.frozen) blocks[0]->out->weight.set_requires_grad(false);
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = embedding(ids) * scale;
    for (Block& block : blocks) x = block(x);
    return head(norm(x));
  }
  torch::nn::Embedding embedding;
  torch::nn::Linear shared, head = nullptr;
  std::vector<Block> blocks;
  torch::nn::LayerNorm norm = nullptr;
  at::Tensor scale;
};
TORCH_MODULE(Net);

}  // namespace sfsdp::testing
