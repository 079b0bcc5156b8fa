// SPDX-License-Identifier: BSD-3-Clause
// GPT-2 as a plain single-device torch::nn module: LayerNorm, biases, tanh GELU, learned positions, tied output. Names
// are Hugging Face's GPT2LMHeadModel's without "transformer."; its Conv1D weights are stored here as [out, in].
// Variants: no bias anywhere (nanoGPT's `bias = False`), rotary instead of learned positions, an output of its own.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace sfsdp::models {

struct GptArgs {
  int64_t dim = 768;
  int64_t n_layers = 12;
  int64_t n_heads = 12;
  int64_t vocab_size = 50257;
  int64_t max_positions = 1024;  // that are learned; not read with rope
  double norm_eps = 1e-5;
  bool bias = true;   // of linear maps and norms
  bool tied = true;   // the output is wte.weight; else lm_head.weight
  bool rope = false;  // q and k are turned by their positions, neighbouring components in pairs; no wpe
  double rope_theta = 10000;

  int64_t num_parameters() const;
  // 6 (N - N_tables) + 12 L D S: learned positions and the tokens of an untied model are looked up; attention counts in
  // full.
  double flops_per_token(int64_t seq_len) const;
};

// 124M, 355M, 774M, 1.5B. Throws UserError naming these and the nearest.
GptArgs gpt_args(std::string_view flavor);
std::vector<std::string> gpt_flavors();

// Dimension key: B batch, S sequence, D model, H heads, E head width, V vocabulary.
// torch::nn::LayerNorm has a bias wherever it has a weight.
class GptNormImpl : public torch::nn::Module {
 public:
  explicit GptNormImpl(const GptArgs& args);
  at::Tensor forward(const at::Tensor& x_BSD);

 private:
  double eps_;
  at::Tensor weight_, bias_;  // bias_ is undefined without one
};
TORCH_MODULE(GptNorm);

class GptBlockImpl : public torch::nn::Module {
 public:
  explicit GptBlockImpl(const GptArgs& args);
  // cos, sin: [S, E/2] or [B, S, E/2], undefined without rope; mask: [B, 1, S, S], undefined: all tokens before attend
  at::Tensor forward(const at::Tensor& x_BSD, const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& mask);

 private:
  int64_t heads_;
  GptNorm ln_1_{nullptr}, ln_2_{nullptr};
  torch::nn::Linear c_attn_{nullptr}, attn_proj_{nullptr}, c_fc_{nullptr}, mlp_proj_{nullptr};
};
TORCH_MODULE(GptBlock);

class GptImpl : public torch::nn::Module {
 public:
  explicit GptImpl(const GptArgs& args);
  // tokens: [B, S] int64; logits: [B, S, V]. throws: UserError if S is more than the positions that are learned
  //   positions: [B, S] int64 of each token in its document, of which a row has several; undefined: a row is one
  at::Tensor forward(const at::Tensor& tokens_BS, const at::Tensor& positions_BS = {});

 private:
  GptArgs args_;
  torch::nn::Embedding wte_{nullptr}, wpe_{nullptr};  // wpe_ is empty with rope
  std::vector<GptBlock> blocks_;
  GptNorm ln_f_{nullptr};
  torch::nn::Linear lm_head_{nullptr};  // empty if tied
};
TORCH_MODULE(Gpt);

}  // namespace sfsdp::models
