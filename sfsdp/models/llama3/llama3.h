// SPDX-License-Identifier: BSD-3-Clause
// Llama 3 and its kin, Qwen2, Qwen3 and Mistral, as one plain single-device torch::nn module. Source of shapes, names and
// initialisation: TorchTitan models/llama3 and models/qwen3 (names are their state-dict keys); Hugging Face's
// LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM and MistralForCausalLM for the numbers.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

  int64_t head_width() const { return head_dim ? head_dim : dim / n_heads; }
  int64_t ffn_width() const;
  int64_t num_parameters() const;
  // TorchTitan's formula: 6 (N - N_embedding) + 12 L H (D / H) S.
  double flops_per_token(int64_t seq_len) const;
};

// debugmodel, 1B, 3B, 8B, 70B, 405B. Throws UserError naming these and the nearest.
Llama3Args llama3_args(std::string_view flavor);
std::vector<std::string> llama3_flavors();

// Dimension key: B batch, S sequence, D model, H heads, K key/value heads, E head width, F feed-forward, V vocabulary.
class RMSNormImpl : public torch::nn::Module {
 public:
  RMSNormImpl(int64_t dim, double eps);
  at::Tensor forward(const at::Tensor& x_BSD);
  at::Tensor weight;

 private:
  double eps_;
};
TORCH_MODULE(RMSNorm);

enum class Bias : uint8_t { None, Zero };  // Zero: as it starts

// y = x Wᵀ + b.
class LinearMapImpl : public torch::nn::Module {
 public:
  LinearMapImpl(int64_t in, int64_t out, Bias starts = Bias::None);
  at::Tensor forward(const at::Tensor& x);
  at::Tensor weight;
  at::Tensor bias;  // undefined without one
};
TORCH_MODULE(LinearMap);

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

class FeedForwardImpl : public torch::nn::Module {
 public:
  FeedForwardImpl(int64_t dim, int64_t hidden, double output_std);
  at::Tensor forward(const at::Tensor& x_BSD);

 private:
  LinearMap w1_{nullptr}, w2_{nullptr}, w3_{nullptr};
};
TORCH_MODULE(FeedForward);

class Llama3BlockImpl : public torch::nn::Module {
 public:
  Llama3BlockImpl(const Llama3Args& args, int64_t layer);
  // cos, sin: [S, E/2] or [B, S, E/2]
  at::Tensor forward(const at::Tensor& x_BSD, const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& mask);

 private:
  RMSNorm attention_norm_{nullptr};
  Attention attention_{nullptr};
  RMSNorm ffn_norm_{nullptr};
  FeedForward feed_forward_{nullptr};
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
