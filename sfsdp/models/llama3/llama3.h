// SPDX-License-Identifier: BSD-3-Clause
// Llama 3 and its kin, Qwen2, Qwen3, Qwen3-MoE, Mistral and Mixtral, as one plain single-device torch::nn module. Source of
// shapes, names and initialisation: TorchTitan models/llama3 and models/qwen3 (names are their state-dict keys); Hugging Face's
// LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM, MistralForCausalLM and MixtralForCausalLM for the
// numbers.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sfsdp/models/layers.h"
#include "sfsdp/models/mixture.h"

namespace sfsdp::models {

struct RopeScaling {  // Llama 3.1's: long wavelengths are stretched by `factor`
  double factor = 8.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  double original_max_position = 8192;
};

struct Llama3Args {
  int64_t dim = 256;
  int64_t n_layers = 6;
  int64_t n_heads = 16;
  int64_t n_kv_heads = 16;
  int64_t vocab_size = 2048;
  int64_t multiple_of = 256;
  double ffn_dim_multiplier = 1.0;
  int64_t hidden_dim = 0;  // of the feed-forward; 0: from the two above
  int64_t head_dim = 0;    // 0: dim / n_heads
  double norm_eps = 1e-5;
  double rope_theta = 500000;
  std::optional<RopeScaling> rope_scaling = RopeScaling{};
  bool tied = false;       // output is tok_embeddings.weight
  bool qkv_bias = false;   // wq, wk and wv have a bias: Qwen2
  bool qk_norm = false;    // each head's q and k pass an RMSNorm before they are turned: Qwen3
  bool depth_init = true;  // std of wo, w2, w3 falls with the layer number

  int64_t num_experts = 0;  // of a mixture in place of a layer's feed-forward: Qwen3-MoE, Mixtral; 0: no layer has one
  int64_t top_k = 2;        // experts of a token, by softmax scores
  int64_t moe_inter_dim = 256;  // of an expert
  bool route_norm = true;       // the chosen scores are divided by their sum
  int64_t n_dense_layers = 0;   // the first ones, without a mixture
  int64_t moe_layer_step = 1;   // of the others, each layer that it divides has one, counted from 1

  int64_t head_width() const { return head_dim ? head_dim : dim / n_heads; }
  int64_t ffn_width() const;
  bool has_mixture(int64_t layer) const;
  MixtureArgs mixture() const;
  int64_t num_parameters() const;
  // Those that a token meets: of experts top_k out of num_experts.
  int64_t num_active_parameters() const;
  // TorchTitan's formula: 6 (N_active - N_embedding) + 12 L H (D / H) S.
  double flops_per_token(int64_t seq_len) const;
};

// Llama 3's debugmodel, 1B, 3B, 8B, 70B, 405B; Qwen3-MoE's debugmodel_moe, 30B-A3B, 235B-A22B; Mixtral's debugmodel_mixtral, 8x7B,
// 8x22B. Throws UserError naming these and the nearest.
Llama3Args llama3_args(std::string_view flavor);
std::vector<std::string> llama3_flavors();

// Dimension key: B batch, S sequence, D model, H heads, K key/value heads, E head width, F feed-forward, V vocabulary.
class AttentionImpl : public torch::nn::Module {
 public:
  AttentionImpl(const Llama3Args& args, double output_std);
  // mask: [B, 1, S, S], as models/documents.h makes it; undefined: all tokens before attend
  at::Tensor forward(const at::Tensor& x_BSD, const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& mask);

 private:
  int64_t heads_, kv_heads_, width_;
  LinearMap wq_{nullptr}, wk_{nullptr}, wv_{nullptr}, wo_{nullptr};
  RMSNorm q_norm_{nullptr}, k_norm_{nullptr};  // empty without qk_norm
};
TORCH_MODULE(Attention);

class Llama3BlockImpl : public torch::nn::Module {
 public:
  Llama3BlockImpl(const Llama3Args& args, int64_t layer);
  // cos, sin: [S, E/2] or [B, S, E/2]
  at::Tensor forward(const at::Tensor& x_BSD, const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& mask);

 private:
  RMSNorm attention_norm_{nullptr};
  Attention attention_{nullptr};
  RMSNorm ffn_norm_{nullptr};
  FeedForward feed_forward_{nullptr};  // empty with a mixture
  Mixture moe_{nullptr};               // empty without
};
TORCH_MODULE(Llama3Block);

class Llama3Impl : public torch::nn::Module {
 public:
  explicit Llama3Impl(const Llama3Args& args);  // throws: UserError for sizes that do not fit together
  // tokens: [B, S] int64; logits: [B, S, V] in the parameters' dtype.
  //   positions: [B, S] int64 of each token in its document, of which a row has several; undefined: a row is one
  at::Tensor forward(const at::Tensor& tokens_BS, const at::Tensor& positions_BS = {});
  const Llama3Args& args() const { return args_; }

 private:
  // Half tables [S, E/2], each angle once: component pairs are neighbours (2j, 2j + 1).
  std::pair<at::Tensor, at::Tensor> rotations(int64_t seq_len) const;

  Llama3Args args_;
  LinearMap tok_embeddings_{nullptr};  // used as a table
  std::vector<Llama3Block> layers_;
  RMSNorm norm_{nullptr};
  LinearMap output_{nullptr};
};
TORCH_MODULE(Llama3);

}  // namespace sfsdp::models
