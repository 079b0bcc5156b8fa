// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/models/deepseek_v3/deepseek_v3.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "sfsdp/models/documents.h"
#include "sfsdp/models/init.h"
#include "sfsdp/models/rope.h"

namespace sfsdp::models {
namespace {

// The pair, a fraction, that turns `turns` times over the length which the model was first trained on.
double pair_of(double turns, const DeepSeekV3Args& args) {
  const double length = args.yarn->original_seq_len;
  return static_cast<double>(args.qk_rope_head_dim) * std::log(length / (2 * std::numbers::pi * turns)) /
         (2 * std::log(args.rope_theta));
}

// v with zeros up to the width of the keys. Attention in one kernel takes all three of one width; the result's columns that
// zeros make are cut off. Without it all scores would be kept for the gradient.
at::Tensor widened(const at::Tensor& v_BHSE, int64_t width) {
  if (v_BHSE.size(-1) == width) return v_BHSE;
  std::vector<int64_t> sizes = v_BHSE.sizes().vec();
  sizes.back() = width - sizes.back();
  return at::cat({v_BHSE, at::zeros(sizes, v_BHSE.options())}, -1);
}

}  // namespace

at::Tensor rope_frequencies(const DeepSeekV3Args& args) {
  const at::Tensor frequency = rope_frequencies(args.qk_rope_head_dim, args.rope_theta);
  if (!args.yarn) return frequency;
  const double most = static_cast<double>(args.qk_rope_head_dim - 1);
  const double low = std::max(std::floor(pair_of(args.yarn->beta_fast, args)), 0.0);
  const double high = std::min(std::ceil(pair_of(args.yarn->beta_slow, args)), most);
  constexpr double kNarrowest = 0.001;  // as in all implementations: no division by 0
  const at::Tensor pair = at::arange(args.qk_rope_head_dim / 2, at::TensorOptions(at::kFloat));
  const at::Tensor slowed = ((pair - low) / std::max(high - low, kNarrowest)).clamp(0.0, 1.0);
  return frequency / args.yarn->factor * slowed + frequency * (1 - slowed);
}

LatentAttentionImpl::LatentAttentionImpl(const DeepSeekV3Args& args, double output_std) : args_(args) {
  const int64_t H = args.n_heads, queries = H * args.qk_head_dim();
  if (args.q_lora_rank == 0) {
    wq_ = register_module("wq", LinearMap(args.dim, queries));
  } else {
    wq_a_ = register_module("wq_a", LinearMap(args.dim, args.q_lora_rank));
    q_norm_ = register_module("q_norm", RMSNorm(args.q_lora_rank, args.latent_norm_eps));
    wq_b_ = register_module("wq_b", LinearMap(args.q_lora_rank, queries));
  }
  wkv_a_ = register_module("wkv_a", LinearMap(args.dim, args.kv_lora_rank + args.qk_rope_head_dim));
  kv_norm_ = register_module("kv_norm", RMSNorm(args.kv_lora_rank, args.latent_norm_eps));
  wkv_b_ = register_module("wkv_b", LinearMap(args.kv_lora_rank, H * (args.qk_nope_head_dim + args.v_head_dim)));
  wo_ = register_module("wo", LinearMap(H * args.v_head_dim, args.dim));
  for (LinearMap* w : {&wq_, &wq_a_, &wq_b_, &wkv_a_, &wkv_b_})
    if (*w) init_linear((*w)->weight, 0.02);
  init_linear(wo_->weight, output_std);
}

at::Tensor LatentAttentionImpl::queries(const at::Tensor& x_BSD, const at::Tensor& cos, const at::Tensor& sin) {
  const at::Tensor flat = wq_ ? wq_(x_BSD) : wq_b_(q_norm_(wq_a_(x_BSD)));
  const at::Tensor q = flat.view({x_BSD.size(0), x_BSD.size(1), args_.n_heads, args_.qk_head_dim()});
  const auto parts = q.split_with_sizes({args_.qk_nope_head_dim, args_.qk_rope_head_dim}, -1);
  return at::cat({parts[0], rotate(parts[1], cos, sin)}, -1);
}

at::Tensor LatentAttentionImpl::forward(const at::Tensor& x_BSD, const at::Tensor& cos, const at::Tensor& sin,
                                        const at::Tensor& mask) {
  const int64_t B = x_BSD.size(0), S = x_BSD.size(1), H = args_.n_heads;
  const at::Tensor q = queries(x_BSD, cos, sin).transpose(1, 2);
  const auto latent = wkv_a_(x_BSD).split_with_sizes({args_.kv_lora_rank, args_.qk_rope_head_dim}, -1);
  const at::Tensor turned = rotate(latent[1].unsqueeze(2), cos, sin);  // [B, S, 1, R]
  const auto kv = wkv_b_(kv_norm_(latent[0]))
                      .view({B, S, H, args_.qk_nope_head_dim + args_.v_head_dim})
                      .split_with_sizes({args_.qk_nope_head_dim, args_.v_head_dim}, -1);
  const at::Tensor k = at::cat({kv[0], turned.expand({B, S, H, args_.qk_rope_head_dim})}, -1).transpose(1, 2);
  const at::Tensor v = widened(kv[1], args_.qk_head_dim()).transpose(1, 2);
  const double scale = args_.softmax_scale();
  const at::Tensor out = mask.defined()
                             ? at::scaled_dot_product_attention(q, k, v, mask, 0.0, /*is_causal=*/false, scale)
                             : at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true, scale);
  return wo_(out.narrow(-1, 0, args_.v_head_dim).transpose(1, 2).reshape({B, S, H * args_.v_head_dim}));
}

DeepSeekV3BlockImpl::DeepSeekV3BlockImpl(const DeepSeekV3Args& args, int64_t layer) {
  const double output_std = 0.02 / std::sqrt(2.0 * static_cast<double>(layer + 1));
  attention_ = register_module("attention", LatentAttention(args, output_std));
  attention_norm_ = register_module("attention_norm", RMSNorm(args.dim, args.norm_eps));
  ffn_norm_ = register_module("ffn_norm", RMSNorm(args.dim, args.norm_eps));
  if (layer < args.n_dense_layers)
    feed_forward_ = register_module("feed_forward", FeedForward(args.dim, args.inter_dim, output_std));
  else
    moe_ = register_module("moe", Mixture(args.mixture(), output_std));
}

at::Tensor DeepSeekV3BlockImpl::forward(const at::Tensor& x_BSD, const at::Tensor& cos, const at::Tensor& sin,
                                        const at::Tensor& mask) {
  const at::Tensor h = x_BSD + attention_(attention_norm_(x_BSD), cos, sin, mask);
  const at::Tensor normed = ffn_norm_(h);
  return h + (moe_ ? moe_(normed) : feed_forward_(normed));
}

DeepSeekV3Impl::DeepSeekV3Impl(const DeepSeekV3Args& args) : args_(args) {
  check_args(args);
  tok_embeddings_ = register_module("tok_embeddings", LinearMap(args.dim, args.vocab_size));
  {
    torch::NoGradGuard no_grad;
    tok_embeddings_->weight.normal_();
  }
  auto layers = register_module("layers", std::make_shared<torch::nn::Module>());
  for (int64_t i = 0; i < args.n_layers; ++i)
    layers_.push_back(layers->register_module(std::to_string(i), DeepSeekV3Block(args, i)));
  norm_ = register_module("norm", RMSNorm(args.dim, args.final_norm_eps));
  output_ = register_module("output", LinearMap(args.dim, args.vocab_size));
  const double std = 1.0 / std::sqrt(static_cast<double>(args.dim));
  trunc_normal_(output_->weight, 0.0, std, -3 * std, 3 * std);
}

at::Tensor DeepSeekV3Impl::forward(const at::Tensor& tokens_BS, const at::Tensor& positions_BS) {
  at::Tensor h = at::embedding(tok_embeddings_->weight, tokens_BS), mask;
  auto [cos, sin] = rotations(tokens_BS.size(1), rope_frequencies(args_));
  const double scale = args_.yarn ? args_.yarn->rotation_scale() : 1;
  if (scale != 1) cos = cos * scale, sin = sin * scale;
  if (positions_BS.defined()) {
    cos = at::embedding(cos, positions_BS);
    sin = at::embedding(sin, positions_BS);
    mask = document_mask(positions_BS, h);
  }
  for (DeepSeekV3Block& layer : layers_) h = layer(h, cos, sin, mask);
  return output_(norm_(h));
}

}  // namespace sfsdp::models
