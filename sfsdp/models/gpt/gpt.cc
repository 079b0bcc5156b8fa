// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/models/gpt/gpt.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::models {
namespace {

struct Flavor {
  const char* name;
  GptArgs args;
};
constexpr Flavor kFlavors[] = {
    {"124M", {768, 12, 12}}, {"355M", {1024, 24, 16}}, {"774M", {1280, 36, 20}}, {"1.5B", {1600, 48, 25}}};

torch::nn::LayerNorm layer_norm(const GptArgs& args) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({args.dim}).eps(args.norm_eps));
}

void init_linear(torch::nn::Linear& linear, double std) {
  at::NoGradGuard no_grad;
  linear->weight.normal_(0.0, std);
  linear->bias.zero_();
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
}

}  // namespace

int64_t GptArgs::num_parameters() const {
  return vocab_size * dim + max_positions * dim + n_layers * (12 * dim * dim + 13 * dim) + 2 * dim;
}

double GptArgs::flops_per_token(int64_t seq_len) const {
  return 6.0 * static_cast<double>(num_parameters() - max_positions * dim) +
         12.0 * static_cast<double>(n_layers * dim * seq_len);
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

GptBlockImpl::GptBlockImpl(const GptArgs& args) : heads_(args.n_heads) {
  auto attn = std::make_shared<torch::nn::Module>();
  auto mlp = std::make_shared<torch::nn::Module>();
  ln_1_ = register_module("ln_1", layer_norm(args));
  register_module("attn", attn);
  c_attn_ = attn->register_module("c_attn", torch::nn::Linear(args.dim, 3 * args.dim));
  attn_proj_ = attn->register_module("c_proj", torch::nn::Linear(args.dim, args.dim));
  ln_2_ = register_module("ln_2", layer_norm(args));
  register_module("mlp", mlp);
  c_fc_ = mlp->register_module("c_fc", torch::nn::Linear(args.dim, 4 * args.dim));
  mlp_proj_ = mlp->register_module("c_proj", torch::nn::Linear(4 * args.dim, args.dim));
  const double output_std = 0.02 / std::sqrt(2.0 * static_cast<double>(args.n_layers));
  init_linear(c_attn_, 0.02);
  init_linear(attn_proj_, output_std);
  init_linear(c_fc_, 0.02);
  init_linear(mlp_proj_, output_std);
}

at::Tensor GptBlockImpl::forward(const at::Tensor& x_BSD) {
  const int64_t B = x_BSD.size(0), S = x_BSD.size(1), D = x_BSD.size(2);
  const auto qkv = c_attn_(ln_1_(x_BSD)).split(D, -1);
  const auto split_heads = [&](const at::Tensor& t) { return t.view({B, S, heads_, D / heads_}).transpose(1, 2); };
  at::Tensor out = at::scaled_dot_product_attention(split_heads(qkv[0]), split_heads(qkv[1]), split_heads(qkv[2]), {},
                                                    0.0, /*is_causal=*/true);
  const at::Tensor h = x_BSD + attn_proj_(out.transpose(1, 2).reshape({B, S, D}));
  return h + mlp_proj_(at::gelu(c_fc_(ln_2_(h)), "tanh"));
}

GptImpl::GptImpl(const GptArgs& args) : max_positions_(args.max_positions) {
  check_args(args);
  wte_ = register_module("wte", torch::nn::Embedding(args.vocab_size, args.dim));
  wpe_ = register_module("wpe", torch::nn::Embedding(args.max_positions, args.dim));
  {
    at::NoGradGuard no_grad;
    wte_->weight.normal_(0.0, 0.02);
    wpe_->weight.normal_(0.0, 0.01);
  }
  auto layers = register_module("h", std::make_shared<torch::nn::Module>());
  for (int64_t i = 0; i < args.n_layers; ++i)
    blocks_.push_back(layers->register_module(std::to_string(i), GptBlock(args)));
  ln_f_ = register_module("ln_f", layer_norm(args));
}

at::Tensor GptImpl::forward(const at::Tensor& tokens_BS) {
  if (tokens_BS.size(1) > max_positions_)
    throw UserError(
        concat("a sequence of ", tokens_BS.size(1), " tokens\n  expected at most ", max_positions_,
               ", the positions that are learned; lower the sequence length or raise GptArgs::max_positions"));
  const at::Tensor positions_S = at::arange(tokens_BS.size(1), at::TensorOptions(at::kLong));
  at::Tensor h = wte_(tokens_BS) + wpe_(positions_S);
  for (GptBlock& block : blocks_) h = block(h);
  return at::linear(ln_f_(h), wte_->weight);
}

}  // namespace sfsdp::models
