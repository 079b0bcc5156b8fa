// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/models/gpt/gpt.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <tuple>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/models/documents.h"
#include "sfsdp/models/rope.h"

namespace sfsdp::models {
namespace {

struct Flavor {
  const char* name;
  GptArgs args;
};
constexpr Flavor kFlavors[] = {
    {"124M", {768, 12, 12}}, {"355M", {1024, 24, 16}}, {"774M", {1280, 36, 20}}, {"1.5B", {1600, 48, 25}}};

torch::nn::Linear linear(const GptArgs& args, int64_t in, int64_t out) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(args.bias));
}

void init_linear(torch::nn::Linear& linear, double std) {
  at::NoGradGuard no_grad;
  linear->weight.normal_(0.0, std);
  if (linear->bias.defined()) linear->bias.zero_();
}

void check_args(const GptArgs& args) {
  const std::pair<const char*, int64_t> sizes[] = {{"dim", args.dim},
                                                   {"n_layers", args.n_layers},
                                                   {"n_heads", args.n_heads},
                                                   {"vocab_size", args.vocab_size},
                                                   {"max_positions", args.max_positions}};
  for (const auto& [name, size] : sizes)
    if (size < 1) throw UserError(concat("GptArgs::", name, " = ", size, "\n  expected at least 1"));
  if (!(args.norm_eps >= 0))
    throw UserError(concat("GptArgs::norm_eps = ", args.norm_eps, "\n  expected a number of at least 0"));
  if (args.dim % args.n_heads != 0)
    throw UserError(concat("GptArgs::dim = ", args.dim, "\n  expected a multiple of n_heads = ", args.n_heads));
  if (args.rope && args.dim / args.n_heads % 2 != 0)
    throw UserError(concat("GptArgs::dim = ", args.dim, " with n_heads = ", args.n_heads,
                           "\n  expected heads of an even width: rotary embedding turns pairs"));
  if (!(args.rope_theta > 0))
    throw UserError(concat("GptArgs::rope_theta = ", args.rope_theta, "\n  expected a number above 0"));
}

}  // namespace

int64_t GptArgs::num_parameters() const {
  const int64_t layer = 12 * dim * dim + (bias ? 13 : 2) * dim, last_norm = (bias ? 2 : 1) * dim;
  return vocab_size * dim * (tied ? 1 : 2) + (rope ? 0 : max_positions * dim) + n_layers * layer + last_norm;
}

double GptArgs::flops_per_token(int64_t seq_len) const {
  const int64_t looked_up = (rope ? 0 : max_positions * dim) + (tied ? 0 : vocab_size * dim);
  return 6.0 * static_cast<double>(num_parameters() - looked_up) + 12.0 * static_cast<double>(n_layers * dim * seq_len);
}

GptArgs gpt_args(std::string_view flavor) {
  for (const Flavor& f : kFlavors)
    if (flavor == f.name) return f.args;
  throw UserError(concat("ModelSpec::flavor = ", flavor, "\n  expected one of ", join(gpt_flavors(), ", "),
                         did_you_mean(flavor, gpt_flavors())));
}

std::vector<std::string> gpt_flavors() {
  std::vector<std::string> names;
  for (const Flavor& f : kFlavors) names.emplace_back(f.name);
  return names;
}

GptNormImpl::GptNormImpl(const GptArgs& args)
    : eps_(args.norm_eps), weight_(register_parameter("weight", torch::ones({args.dim}))) {
  if (args.bias) bias_ = register_parameter("bias", torch::zeros({args.dim}));
}

at::Tensor GptNormImpl::forward(const at::Tensor& x_BSD) {
  return at::layer_norm(x_BSD, {x_BSD.size(-1)}, weight_, bias_, eps_);
}

GptBlockImpl::GptBlockImpl(const GptArgs& args) : heads_(args.n_heads) {
  auto attn = std::make_shared<torch::nn::Module>();
  auto mlp = std::make_shared<torch::nn::Module>();
  ln_1_ = register_module("ln_1", GptNorm(args));
  register_module("attn", attn);
  c_attn_ = attn->register_module("c_attn", linear(args, args.dim, 3 * args.dim));
  attn_proj_ = attn->register_module("c_proj", linear(args, args.dim, args.dim));
  ln_2_ = register_module("ln_2", GptNorm(args));
  register_module("mlp", mlp);
  c_fc_ = mlp->register_module("c_fc", linear(args, args.dim, 4 * args.dim));
  mlp_proj_ = mlp->register_module("c_proj", linear(args, 4 * args.dim, args.dim));
  const double output_std = 0.02 / std::sqrt(2.0 * static_cast<double>(args.n_layers));
  init_linear(c_attn_, 0.02);
  init_linear(attn_proj_, output_std);
  init_linear(c_fc_, 0.02);
  init_linear(mlp_proj_, output_std);
}

at::Tensor GptBlockImpl::forward(const at::Tensor& x_BSD, const at::Tensor& cos, const at::Tensor& sin,
                                 const at::Tensor& mask) {
  const int64_t B = x_BSD.size(0), S = x_BSD.size(1), D = x_BSD.size(2);
  const auto qkv = c_attn_(ln_1_(x_BSD)).split(D, -1);
  const auto split_heads = [&](const at::Tensor& t) { return t.view({B, S, heads_, D / heads_}); };
  const auto turned = [&](const at::Tensor& t) { return cos.defined() ? rotate(t, cos, sin) : t; };
  const at::Tensor q = turned(split_heads(qkv[0])).transpose(1, 2), k = turned(split_heads(qkv[1])).transpose(1, 2);
  const at::Tensor v = split_heads(qkv[2]).transpose(1, 2);
  const at::Tensor out = mask.defined() ? at::scaled_dot_product_attention(q, k, v, mask)
                                        : at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true);
  const at::Tensor h = x_BSD + attn_proj_(out.transpose(1, 2).reshape({B, S, D}));
  return h + mlp_proj_(at::gelu(c_fc_(ln_2_(h)), "tanh"));
}

GptImpl::GptImpl(const GptArgs& args) : args_(args) {
  check_args(args);
  wte_ = register_module("wte", torch::nn::Embedding(args.vocab_size, args.dim));
  if (!args.rope) wpe_ = register_module("wpe", torch::nn::Embedding(args.max_positions, args.dim));
  {
    at::NoGradGuard no_grad;
    wte_->weight.normal_(0.0, 0.02);
    if (wpe_) wpe_->weight.normal_(0.0, 0.01);
  }
  auto layers = register_module("h", std::make_shared<torch::nn::Module>());
  for (int64_t i = 0; i < args.n_layers; ++i)
    blocks_.push_back(layers->register_module(std::to_string(i), GptBlock(args)));
  ln_f_ = register_module("ln_f", GptNorm(args));
  if (args.tied) return;
  lm_head_ =
      register_module("lm_head", torch::nn::Linear(torch::nn::LinearOptions(args.dim, args.vocab_size).bias(false)));
  init_linear(lm_head_, 0.02);
}

at::Tensor GptImpl::forward(const at::Tensor& tokens_BS, const at::Tensor& positions_BS) {
  const int64_t S = tokens_BS.size(1);
  const bool packed = positions_BS.defined();
  at::Tensor h = wte_(tokens_BS), cos, sin, mask;
  if (packed) mask = document_mask(positions_BS, h);
  if (args_.rope) {
    std::tie(cos, sin) = rotations(S, rope_frequencies(args_.dim / args_.n_heads, args_.rope_theta));
    if (packed) cos = at::embedding(cos, positions_BS), sin = at::embedding(sin, positions_BS);
  } else {
    if (S > args_.max_positions)
      throw UserError(
          concat("a sequence of ", S, " tokens\n  expected at most ", args_.max_positions,
                 ", the positions that are learned; lower the sequence length or raise GptArgs::max_positions"));
    h = h + wpe_(packed ? positions_BS : at::arange(S, at::TensorOptions(at::kLong)));
  }
  for (GptBlock& block : blocks_) h = block(h, cos, sin, mask);
  return at::linear(ln_f_(h), args_.tied ? wte_->weight : lm_head_->weight);
}

}  // namespace sfsdp::models
