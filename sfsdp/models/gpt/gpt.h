// SPDX-License-Identifier: BSD-3-Clause
// GPT-2 as a plain single-device torch::nn module: LayerNorm, biases, tanh GELU, learned positions, tied output. Names
// are Hugging Face's GPT2LMHeadModel's without "transformer."; its Conv1D weights are stored here as [out, in].
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
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
  int64_t max_positions = 1024;
  double norm_eps = 1e-5;

  int64_t num_parameters() const;
  // 6 (N - N_positions) + 12 L D S: the tied table is a matrix product, attention counts in full.
  double flops_per_token(int64_t seq_len) const;
};

// 124M, 355M, 774M, 1.5B. Throws UserError naming these and the nearest.
GptArgs gpt_args(std::string_view flavor);
std::vector<std::string> gpt_flavors();

// Dimension key: B batch, S sequence, D model, H heads, E head width, V vocabulary.
class GptBlockImpl : public torch::nn::Module {
 public:
  explicit GptBlockImpl(const GptArgs& args);
  at::Tensor forward(const at::Tensor& x_BSD);

 private:
  int64_t heads_;
  torch::nn::LayerNorm ln_1_{nullptr}, ln_2_{nullptr};
  torch::nn::Linear c_attn_{nullptr}, attn_proj_{nullptr}, c_fc_{nullptr}, mlp_proj_{nullptr};
};
TORCH_MODULE(GptBlock);

class GptImpl : public torch::nn::Module {
 public:
  explicit GptImpl(const GptArgs& args);
  // tokens: [B, S] int64; logits: [B, S, V]. throws: UserError if S is more than max_positions
  at::Tensor forward(const at::Tensor& tokens_BS);

 private:
  int64_t max_positions_;
  torch::nn::Embedding wte_{nullptr}, wpe_{nullptr};
  std::vector<GptBlock> blocks_;
  torch::nn::LayerNorm ln_f_{nullptr};
};
TORCH_MODULE(Gpt);

}  // namespace sfsdp::models
