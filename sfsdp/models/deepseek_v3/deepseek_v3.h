// SPDX-License-Identifier: BSD-3-Clause
// DeepSeek-V3, and V2 by its arguments, as one plain single-device torch::nn module. Source of shapes, names and
// initialisation: TorchTitan models/deepseek_v3 (names are its state-dict keys); Hugging Face's DeepseekV3ForCausalLM for the
// numbers.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "sfsdp/models/deepseek_v3/args.h"
#include "sfsdp/models/layers.h"
#include "sfsdp/models/mixture.h"

namespace sfsdp::models {

// Frequencies of the pairs, [qk_rope_head_dim / 2] f32, as YaRN has them where args.yarn is set.
at::Tensor rope_frequencies(const DeepSeekV3Args& args);

// Dimension key: B batch, S sequence, D model, H heads, E a head's queries and keys, R their part that is turned, V vocabulary.
// Multi-head latent attention: keys and values are made of one latent, the keys' turned part is the same for all heads.
class LatentAttentionImpl : public torch::nn::Module {
 public:
  LatentAttentionImpl(const DeepSeekV3Args& args, double output_std);
  // cos, sin: [S, R/2] or [B, S, R/2]; mask: [B, 1, S, S], as models/documents.h makes it; undefined: all tokens before attend
  at::Tensor forward(const at::Tensor& x_BSD, const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& mask);

 private:
  at::Tensor queries(const at::Tensor& x_BSD, const at::Tensor& cos, const at::Tensor& sin);

  DeepSeekV3Args args_;
  LinearMap wq_{nullptr};                    // empty with q_lora_rank
  LinearMap wq_a_{nullptr}, wq_b_{nullptr};  // empty without
  RMSNorm q_norm_{nullptr}, kv_norm_{nullptr};
  LinearMap wkv_a_{nullptr}, wkv_b_{nullptr}, wo_{nullptr};
};
TORCH_MODULE(LatentAttention);

class DeepSeekV3BlockImpl : public torch::nn::Module {
 public:
  DeepSeekV3BlockImpl(const DeepSeekV3Args& args, int64_t layer);
  // as LatentAttentionImpl::forward
  at::Tensor forward(const at::Tensor& x_BSD, const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& mask);

 private:
  RMSNorm attention_norm_{nullptr}, ffn_norm_{nullptr};
  LatentAttention attention_{nullptr};
  FeedForward feed_forward_{nullptr};  // of the first n_dense_layers
  Mixture moe_{nullptr};               // of the others
};
TORCH_MODULE(DeepSeekV3Block);

class DeepSeekV3Impl : public torch::nn::Module {
 public:
  explicit DeepSeekV3Impl(const DeepSeekV3Args& args);  // throws: UserError for sizes that do not fit together
  // tokens: [B, S] int64; logits: [B, S, V] in the parameters' dtype.
  //   positions: [B, S] int64 of each token in its document, of which a row has several; undefined: a row is one
  at::Tensor forward(const at::Tensor& tokens_BS, const at::Tensor& positions_BS = {});

 private:
  DeepSeekV3Args args_;
  LinearMap tok_embeddings_{nullptr};  // used as a table
  std::vector<DeepSeekV3Block> layers_;
  RMSNorm norm_{nullptr};
  LinearMap output_{nullptr};
};
TORCH_MODULE(DeepSeekV3);

}  // namespace sfsdp::models
