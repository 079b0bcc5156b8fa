// SPDX-License-Identifier: BSD-3-Clause
// Sizes and choices of DeepSeek-V2 and V3. Source: TorchTitan models/deepseek_v3, whose names the fields have; the reports
// arXiv:2405.04434 and arXiv:2412.19437 for routing; arXiv:2309.00071 for YaRN.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/models/mixture_args.h"

namespace sfsdp::models {

// YaRN: pairs that turn often keep their frequency, those that turn seldom are slowed by `factor`.
struct Yarn {
  double factor = 40;
  double original_seq_len = 4096;  // that the model was first trained on
  double beta_fast = 32;           // turns over original_seq_len from which on a frequency is kept
  double beta_slow = 1;            // and up to which it is divided by `factor`
  // Both as m in growth(m) = 0.1 m ln(factor) + 1: scores are multiplied by the square of mscale_all_dim's, cosines and
  // sines by the ratio of the two; where one is 0, by growth(1).
  double mscale = 1;
  double mscale_all_dim = 1;

  double growth(double m) const;
  double rotation_scale() const;
};

struct DeepSeekV3Args {
  int64_t dim = 256;
  int64_t inter_dim = 1024;     // of the feed-forward of the first layers
  int64_t moe_inter_dim = 256;  // of an expert
  int64_t n_layers = 6;
  int64_t n_dense_layers = 1;  // the first ones, without experts
  int64_t n_heads = 16;
  int64_t vocab_size = 2048;
  double norm_eps = 1e-5;
  double latent_norm_eps = 1e-5;    // of the norms of the latents of queries and of keys and values
  double final_norm_eps = 0x1p-23;  // LibTorch's default, which TorchTitan takes

  int64_t q_lora_rank = 0;  // width of the queries' latent; 0: queries are made of x at once
  int64_t kv_lora_rank = 512;
  int64_t qk_nope_head_dim = 128;
  int64_t qk_rope_head_dim = 64;
  int64_t v_head_dim = 128;
  double rope_theta = 10000;
  std::optional<Yarn> yarn = Yarn{};

  int64_t num_experts = 8;
  int64_t num_shared_experts = 2;  // one feed-forward of as many times moe_inter_dim; 0: none
  int64_t top_k = 3;               // experts of a token
  RouterScore score_func = RouterScore::Softmax;
  bool route_norm = false;  // a token's weights are divided by their sum
  double route_scale = 1;   // and multiplied by this
  int64_t n_expert_groups = 1;
  int64_t n_limited_groups = 1;   // of which a token's experts come
  int64_t scores_of_group = 2;    // a group counts as the sum of as many best scores: V3 takes 2, V2 1
  bool expert_bias = true;        // each expert has a bias that is added to its score for the choice alone; V2 has none
  double load_balance_coeff = 0;  // by which expert_bias moves in a step; 0: it stays as it is

  int64_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  // What scores are multiplied with before softmax: 1 / sqrt(qk_head_dim), and YaRN's square.
  double softmax_scale() const;
  MixtureArgs mixture() const;
  int64_t num_parameters() const;
  // Those that a token meets: of routed experts top_k out of num_experts.
  int64_t num_active_parameters() const;
  // TorchTitan's formula: 6 (N_active - N_embedding) + 12 L H (D / H) S.
  double flops_per_token(int64_t seq_len) const;
};

// debugmodel, 16B, 236B, 671B. Throws UserError naming these and the nearest.
DeepSeekV3Args deepseek_v3_args(std::string_view flavor);
std::vector<std::string> deepseek_v3_flavors();

// Throws UserError for sizes that do not fit together, naming the field.
void check_args(const DeepSeekV3Args& args);

}  // namespace sfsdp::models
