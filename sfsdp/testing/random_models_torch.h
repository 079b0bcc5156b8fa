// SPDX-License-Identifier: BSD-3-Clause
// Language models of a few layers, drawn at random: what stands in a layer, its width, tied and frozen weights.
#pragma once

#include <ATen/ATen.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "sfsdp/models/init.h"

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

enum class Kind : uint8_t { Mlp, Gated, Attention, Mixer, Mixture, Shared, GroupNorm, Pool, Scan };

struct NetArgs {
  int64_t dim = 8;
  int64_t more = 1;  // a feed-forward is 2 · dim + more wide
  std::vector<Kind> blocks;
  bool tied = false, frozen = false;
  // Blocks that are mixtures: experts, how many a token chooses, how wide each is, and whether what they give is added up row by row.
  int64_t experts = 4, chosen = 2, width = 8;
  bool adds_rows = true;
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

// Feed-forwards of which each row has one: rows of expert e end before ends[e].
struct ExpertsImpl : torch::nn::Module {
  ExpertsImpl(int64_t experts, int64_t dim, int64_t width)
      : up(register_parameter("up", torch::empty({experts, dim, width}))),
        down(register_parameter("down", torch::empty({experts, width, dim}))) {
    models::init_linear(up, 0.3);
    models::init_linear(down, 0.3);
  }
  at::Tensor forward(const at::Tensor& rows, const at::Tensor& ends) const {
    return product(at::silu(product(rows, up, ends)), down, ends);
  }
  // LibTorch groups no products in float64.
  static at::Tensor product(const at::Tensor& rows, const at::Tensor& weights, const at::Tensor& ends) {
    if (rows.scalar_type() != at::kDouble) return at::_grouped_mm(rows, weights, ends);
    std::vector<at::Tensor> parts;
    int64_t begin = 0;
    for (int64_t e = 0; e < weights.size(0); ++e) {
      const auto end = ends[e].item<int64_t>();
      parts.push_back(rows.slice(0, begin, end).matmul(weights[e]));
      begin = end;
    }
    return at::cat(parts);
  }
  at::Tensor up, down;
};
TORCH_MODULE(Experts);

struct MixtureImpl : torch::nn::Module {
  explicit MixtureImpl(const NetArgs& a)
      : args(a),
        router(register_module("router", torch::nn::Linear(torch::nn::LinearOptions(a.dim, a.experts).bias(false)))),
        experts(register_module("experts", Experts(a.experts, a.dim, a.width))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor tokens = x.flatten(0, 1), scores = router(tokens).softmax(-1);
    const at::Tensor chosen = std::get<1>(scores.detach().topk(args.chosen, -1)), flat = chosen.flatten();
    const at::Tensor order = flat.argsort(true, 0, false), token = order.floor_divide(args.chosen);
    const at::Tensor ends = at::one_hot(flat, args.experts).sum(0).cumsum(0).to(at::kInt);
    const at::Tensor weights = scores.gather(1, chosen).flatten().index_select(0, order).unsqueeze(-1);
    const at::Tensor rows = experts(tokens.index_select(0, token), ends) * weights;
    if (args.adds_rows) return at::zeros_like(tokens).index_add(0, token, rows).view(x.sizes());
    const at::Tensor place = at::empty_like(order).scatter(0, order, at::arange(order.size(0), at::kLong));
    return rows.index_select(0, place).view({tokens.size(0), args.chosen, args.dim}).sum(1).view(x.sizes());
  }
  NetArgs args;
  torch::nn::Linear router;
  Experts experts;
};
TORCH_MODULE(Mixture);

struct BlockImpl : torch::nn::Module {
  BlockImpl(Kind k, const NetArgs& args, const torch::nn::Linear& shared)
      : kind(k),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({args.dim})))),
        out(shared) {
    constexpr int64_t kLength = 12;  // of the sequences
    const int64_t dim = args.dim, inner = kind == Kind::Attention ? dim : 2 * dim + args.more;
    const auto linear = [&](const char* name, int64_t from, int64_t to) {
      return register_module(name, torch::nn::Linear(torch::nn::LinearOptions(from, to).bias(false)));
    };
    if (kind == Kind::Mixer) out = linear("out", kLength, kLength);
    if (kind == Kind::GroupNorm)
      groups = register_module("groups", torch::nn::GroupNorm(torch::nn::GroupNormOptions(3, kLength)));
    if (kind == Kind::Mixture) mixture = register_module("mixture", Mixture(args));
    if (kind == Kind::Mixer || kind == Kind::Mixture || kind == Kind::Shared || kind >= Kind::GroupNorm) return;
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
      case Kind::Mixture: return x + mixture(h);
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
  Mixture mixture = nullptr;
  torch::nn::Linear out, a = nullptr, b = nullptr, c = nullptr;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const NetArgs& args)
      : embedding(register_module("embedding", torch::nn::Embedding(29, args.dim))),
        shared(register_module("shared", torch::nn::Linear(args.dim, args.dim))) {
    auto layers = register_module("layers", std::make_shared<torch::nn::Module>());
    for (size_t i = 0; i < args.blocks.size(); ++i)
      blocks.push_back(layers->register_module(std::to_string(i), Block(args.blocks[i], args, shared)));
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
