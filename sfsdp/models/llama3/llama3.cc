// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/models/llama3/llama3.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/types.h>

#include <cmath>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/models/documents.h"
#include "sfsdp/models/init.h"
#include "sfsdp/models/rope.h"

namespace sfsdp::models {
namespace {

struct Flavor {
  const char* name;
  Llama3Args args;
};

Llama3Args debug_moe() {
  Llama3Args args;
  args.n_kv_heads = 4;
  args.head_dim = 32;
  args.norm_eps = 1e-6;
  args.rope_theta = 1e6;
  args.rope_scaling.reset();
  args.qk_norm = true;
  args.num_experts = 16;
  args.top_k = 4;
  args.moe_inter_dim = 128;
  return args;
}

// Source: config.json of Qwen/Qwen3-30B-A3B and Qwen/Qwen3-235B-A22B.
Llama3Args qwen3_30b() {
  Llama3Args args = debug_moe();
  args.dim = 2048;
  args.n_layers = 48;
  args.n_heads = 32;
  args.head_dim = 128;
  args.vocab_size = 151936;
  args.hidden_dim = 6144;
  args.num_experts = 128;
  args.top_k = 8;
  args.moe_inter_dim = 768;
  return args;
}

Llama3Args qwen3_235b() {
  Llama3Args args = qwen3_30b();
  args.dim = 4096;
  args.n_layers = 94;
  args.n_heads = 64;
  args.hidden_dim = 12288;
  args.moe_inter_dim = 1536;
  return args;
}

Llama3Args debug_mixtral() {
  Llama3Args args;
  args.n_kv_heads = 4;
  args.rope_theta = 1e6;
  args.rope_scaling.reset();
  args.num_experts = 8;
  args.moe_inter_dim = 256;
  return args;
}

// Source: config.json of mistralai/Mixtral-8x7B-v0.1 and mistralai/Mixtral-8x22B-Instruct-v0.1.
Llama3Args mixtral_8x7b() {
  Llama3Args args = debug_mixtral();
  args.dim = 4096;
  args.n_layers = 32;
  args.n_heads = 32;
  args.n_kv_heads = 8;
  args.vocab_size = 32000;
  args.moe_inter_dim = 14336;
  return args;
}

Llama3Args mixtral_8x22b() {
  Llama3Args args = mixtral_8x7b();
  args.dim = 6144;
  args.n_layers = 56;
  args.n_heads = 48;
  args.vocab_size = 32768;
  args.moe_inter_dim = 16384;
  return args;
}

const std::vector<Flavor>& flavors() {
  static const std::vector<Flavor> kFlavors = [] {
    const auto make = [](int64_t dim, int64_t layers, int64_t heads, int64_t kv, int64_t multiple, double multiplier,
                         bool tied) {
      Llama3Args args;
      args.dim = dim;
      args.n_layers = layers;
      args.n_heads = heads;
      args.n_kv_heads = kv;
      args.vocab_size = 128256;
      args.multiple_of = multiple;
      args.ffn_dim_multiplier = multiplier;
      args.tied = tied;
      return args;
    };
    return std::vector<Flavor>{{"debugmodel", Llama3Args{}},
                               {"1B", make(2048, 16, 32, 8, 256, 1.5, true)},
                               {"3B", make(3072, 28, 24, 8, 256, 1.0, true)},
                               {"8B", make(4096, 32, 32, 8, 1024, 1.3, false)},
                               {"70B", make(8192, 80, 64, 8, 4096, 1.3, false)},
                               {"405B", make(16384, 126, 128, 8, 4096, 1.2, false)},
                               {"debugmodel_moe", debug_moe()},
                               {"30B-A3B", qwen3_30b()},
                               {"235B-A22B", qwen3_235b()},
                               {"debugmodel_mixtral", debug_mixtral()},
                               {"8x7B", mixtral_8x7b()},
                               {"8x22B", mixtral_8x22b()}};
  }();
  return kFlavors;
}

// Args of mixtures that no layer has are not looked at.
void check_experts(const Llama3Args& args) {
  if (args.num_experts == 0) return;
  if (args.n_dense_layers < 0 || args.n_dense_layers > args.n_layers)
    throw UserError(concat("Llama3Args::n_dense_layers = ", args.n_dense_layers,
                           "\n  expected at most n_layers = ", args.n_layers));
  if (args.moe_layer_step < 1)
    throw UserError(concat("Llama3Args::moe_layer_step = ", args.moe_layer_step, "\n  expected at least 1"));
  check_mixture(args.mixture(), "Llama3Args::");
}

void check_args(const Llama3Args& args) {
  const std::pair<const char*, int64_t> sizes[] = {{"Llama3Args::dim", args.dim},
                                                   {"Llama3Args::n_layers", args.n_layers},
                                                   {"Llama3Args::n_heads", args.n_heads},
                                                   {"Llama3Args::n_kv_heads", args.n_kv_heads},
                                                   {"Llama3Args::vocab_size", args.vocab_size},
                                                   {"Llama3Args::multiple_of", args.multiple_of}};
  const auto refuse = [](const char* name, auto got, const auto&... expected) {
    throw UserError(concat(name, " = ", got, "\n  expected ", expected...));
  };
  for (const auto& [name, size] : sizes)
    if (size < 1) refuse(name, size, "at least 1");
  constexpr double kMostWidth = 2147483647;
  const double times_dim = args.ffn_dim_multiplier * 8 / 3 * static_cast<double>(args.dim);
  if (args.hidden_dim == 0 && !(times_dim >= 1 && times_dim <= kMostWidth))
    refuse("Llama3Args::ffn_dim_multiplier", args.ffn_dim_multiplier, "a feed-forward width from 1 to 2^31 - 1");
  if (args.n_heads % args.n_kv_heads != 0)
    refuse("Llama3Args::n_kv_heads", args.n_kv_heads, "a divisor of n_heads = ", args.n_heads);
  if (args.head_dim == 0 && args.dim % args.n_heads != 0)
    refuse("Llama3Args::dim", args.dim, "a multiple of n_heads = ", args.n_heads, ", or head_dim");
  if (args.head_width() < 2 || args.head_width() % 2 != 0)
    refuse("Llama3Args::head_dim", args.head_width(),
           "an even width (dim / n_heads if not given): rotary embedding turns pairs");
  if (!(args.norm_eps >= 0)) refuse("Llama3Args::norm_eps", args.norm_eps, "a number of at least 0");
  if (!(args.rope_theta > 0)) refuse("Llama3Args::rope_theta", args.rope_theta, "a number above 0");
  const auto& scaling = args.rope_scaling;
  if (scaling && !(scaling->factor >= 1)) refuse("RopeScaling::factor", scaling->factor, "at least 1");
  if (scaling && !(scaling->low_freq_factor > 0))
    refuse("RopeScaling::low_freq_factor", scaling->low_freq_factor, "a number above 0");
  if (scaling && !(scaling->original_max_position > 0))
    refuse("RopeScaling::original_max_position", scaling->original_max_position, "a number above 0");
  if (scaling && !(scaling->high_freq_factor > scaling->low_freq_factor))
    refuse("RopeScaling::high_freq_factor", scaling->high_freq_factor,
           "more than RopeScaling::low_freq_factor = ", scaling->low_freq_factor);
}

}  // namespace

int64_t Llama3Args::ffn_width() const {
  if (hidden_dim > 0) return hidden_dim;
  auto width = static_cast<int64_t>(2.0 * 4.0 * static_cast<double>(dim) / 3.0);
  width = static_cast<int64_t>(ffn_dim_multiplier * static_cast<double>(width));
  return multiple_of * ((width + multiple_of - 1) / multiple_of);
}

bool Llama3Args::has_mixture(int64_t layer) const {
  return num_experts > 0 && layer >= n_dense_layers && (layer + 1) % moe_layer_step == 0;
}

MixtureArgs Llama3Args::mixture() const {
  return {
      .dim = dim, .moe_inter_dim = moe_inter_dim, .num_experts = num_experts, .top_k = top_k, .route_norm = route_norm};
}

namespace {

struct Counts {
  int64_t others = 0, routed = 0;  // of experts, and of all else
};

Counts counts_of(const Llama3Args& a) {
  const int64_t q = a.n_heads * a.head_width(), kv = a.n_kv_heads * a.head_width();
  const int64_t extra = (a.qkv_bias ? q + 2 * kv : 0) + (a.qk_norm ? 2 * a.head_width() : 0);
  int64_t mixtures = 0;
  for (int64_t i = 0; i < a.n_layers; ++i) mixtures += a.has_mixture(i) ? 1 : 0;
  Counts counts;
  counts.others = a.n_layers * (a.dim * (2 * q + 2 * kv) + 2 * a.dim + extra) + a.dim +
                  a.vocab_size * a.dim * (a.tied ? 1 : 2) + (a.n_layers - mixtures) * 3 * a.dim * a.ffn_width() +
                  mixtures * a.mixture().num_shared_parameters();
  counts.routed = mixtures * a.mixture().num_routed_parameters();
  return counts;
}

}  // namespace

int64_t Llama3Args::num_parameters() const {
  const Counts counts = counts_of(*this);
  return counts.others + counts.routed;
}

int64_t Llama3Args::num_active_parameters() const {
  const Counts counts = counts_of(*this);
  return counts.others + (num_experts == 0 ? 0 : counts.routed / num_experts * top_k);
}

double Llama3Args::flops_per_token(int64_t seq_len) const {
  const auto matmul = static_cast<double>(num_active_parameters() - (tied ? 0 : vocab_size * dim));
  return 6.0 * matmul + 12.0 * static_cast<double>(n_layers * n_heads * head_width() * seq_len);
}

Llama3Args llama3_args(std::string_view flavor) {
  for (const Flavor& f : flavors())
    if (flavor == f.name) return f.args;
  throw UserError(concat("ModelSpec::flavor = ", flavor, "\n  expected one of ", join(llama3_flavors(), ", "),
                         did_you_mean(flavor, llama3_flavors())));
}

std::vector<std::string> llama3_flavors() {
  std::vector<std::string> names;
  for (const Flavor& f : flavors()) names.emplace_back(f.name);
  return names;
}

AttentionImpl::AttentionImpl(const Llama3Args& args, double output_std)
    : heads_(args.n_heads), kv_heads_(args.n_kv_heads), width_(args.head_width()) {
  const Bias bias = args.qkv_bias ? Bias::Zero : Bias::None;
  wq_ = register_module("wq", LinearMap(args.dim, heads_ * width_, bias));
  wk_ = register_module("wk", LinearMap(args.dim, kv_heads_ * width_, bias));
  wv_ = register_module("wv", LinearMap(args.dim, kv_heads_ * width_, bias));
  wo_ = register_module("wo", LinearMap(heads_ * width_, args.dim));
  for (LinearMap* w : {&wq_, &wk_, &wv_}) init_linear((*w)->weight, 0.02);
  init_linear(wo_->weight, output_std);
  if (!args.qk_norm) return;
  q_norm_ = register_module("q_norm", RMSNorm(width_, args.norm_eps));
  k_norm_ = register_module("k_norm", RMSNorm(width_, args.norm_eps));
}

at::Tensor AttentionImpl::forward(const at::Tensor& x_BSD, const at::Tensor& cos, const at::Tensor& sin,
                                  const at::Tensor& mask) {
  const int64_t B = x_BSD.size(0), S = x_BSD.size(1);
  at::Tensor q = wq_(x_BSD).view({B, S, heads_, width_}), k = wk_(x_BSD).view({B, S, kv_heads_, width_});
  if (q_norm_) q = q_norm_(q), k = k_norm_(k);
  q = rotate(q, cos, sin).transpose(1, 2);
  k = rotate(k, cos, sin).transpose(1, 2);
  const at::Tensor v = wv_(x_BSD).view({B, S, kv_heads_, width_}).transpose(1, 2);
  const bool gqa = heads_ != kv_heads_;
  const at::Tensor out =
      mask.defined() ? at::scaled_dot_product_attention(q, k, v, mask, 0.0, /*is_causal=*/false, std::nullopt, gqa)
                     : at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true, std::nullopt, gqa);
  return wo_(out.transpose(1, 2).reshape({B, S, heads_ * width_}));
}

Llama3BlockImpl::Llama3BlockImpl(const Llama3Args& args, int64_t layer) {
  const double depth = static_cast<double>(args.depth_init ? layer + 1 : args.n_layers);
  const double output_std = 0.02 / std::sqrt(2.0 * depth);
  attention_ = register_module("attention", Attention(args, output_std));
  if (args.has_mixture(layer))
    moe_ = register_module("moe", Mixture(args.mixture(), output_std));
  else
    feed_forward_ = register_module("feed_forward", FeedForward(args.dim, args.ffn_width(), output_std));
  attention_norm_ = register_module("attention_norm", RMSNorm(args.dim, args.norm_eps));
  ffn_norm_ = register_module("ffn_norm", RMSNorm(args.dim, args.norm_eps));
}

at::Tensor Llama3BlockImpl::forward(const at::Tensor& x_BSD, const at::Tensor& cos, const at::Tensor& sin,
                                    const at::Tensor& mask) {
  const at::Tensor h = x_BSD + attention_(attention_norm_(x_BSD), cos, sin, mask);
  const at::Tensor normed = ffn_norm_(h);
  return h + (moe_ ? moe_(normed) : feed_forward_(normed));
}

Llama3Impl::Llama3Impl(const Llama3Args& args) : args_(args) {
  check_args(args);
  check_experts(args);
  tok_embeddings_ = register_module("tok_embeddings", LinearMap(args.dim, args.vocab_size));
  {
    torch::NoGradGuard no_grad;
    tok_embeddings_->weight.normal_();
  }
  auto layers = register_module("layers", std::make_shared<torch::nn::Module>());
  for (int64_t i = 0; i < args.n_layers; ++i)
    layers_.push_back(layers->register_module(std::to_string(i), Llama3Block(args, i)));
  norm_ = register_module("norm", RMSNorm(args.dim, args.norm_eps));
  if (args.tied) return;
  output_ = register_module("output", LinearMap(args.dim, args.vocab_size));
  const double std = 1.0 / std::sqrt(static_cast<double>(args.dim));
  trunc_normal_(output_->weight, 0.0, std, -3 * std, 3 * std);
}

std::pair<at::Tensor, at::Tensor> Llama3Impl::rotations(int64_t seq_len) const {
  at::Tensor frequency = rope_frequencies(args_.head_width(), args_.rope_theta);
  if (const auto& s = args_.rope_scaling) {
    const at::Tensor turns = frequency * (s->original_max_position / (2 * M_PI));
    const at::Tensor mix = ((turns - s->low_freq_factor) / (s->high_freq_factor - s->low_freq_factor)).clamp(0.0, 1.0);
    frequency = frequency * (mix + (1 - mix) / s->factor);
  }
  return models::rotations(seq_len, frequency);
}

at::Tensor Llama3Impl::forward(const at::Tensor& tokens_BS, const at::Tensor& positions_BS) {
  at::Tensor h = at::embedding(tok_embeddings_->weight, tokens_BS), mask;
  auto [cos, sin] = rotations(tokens_BS.size(1));
  if (positions_BS.defined()) {
    cos = at::embedding(cos, positions_BS);
    sin = at::embedding(sin, positions_BS);
    mask = document_mask(positions_BS, h);
  }
  for (Llama3Block& layer : layers_) h = layer(h, cos, sin, mask);
  h = norm_(h);
  return at::linear(h, args_.tied ? tok_embeddings_->weight : output_->weight);
}

}  // namespace sfsdp::models
