// SPDX-License-Identifier: BSD-3-Clause
// Sizes and choices of a mixture of experts. Source: TorchTitan models/moe; the reports arXiv:2405.04434 and arXiv:2412.19437 for
// groups and biases; Hugging Face's Qwen3Moe and Mixtral for softmax scores of which the chosen ones are divided by their sum.
#pragma once

#include <cstdint>
#include <string_view>

namespace sfsdp::models {

// How a token's scores of the experts are made of the router's logits.
enum class RouterScore : uint8_t { Softmax, Sigmoid };

// What the choice of experts is made by: the scores, or these and a bias of each expert that no gradient moves.
enum class Choice : uint8_t { ByScore, WithBias };

struct MixtureArgs {
  int64_t dim = 256;
  int64_t moe_inter_dim = 256;  // of an expert
  int64_t num_experts = 8;
  int64_t num_shared_experts = 0;  // one feed-forward of as many times moe_inter_dim; 0: none
  int64_t top_k = 2;               // experts of a token
  RouterScore score_func = RouterScore::Softmax;
  Choice choice = Choice::ByScore;
  bool route_norm = false;  // a token's weights are divided by their sum
  double route_scale = 1;   // and multiplied by this
  int64_t n_expert_groups = 1;
  int64_t n_limited_groups = 1;   // of which a token's experts come
  int64_t scores_of_group = 2;    // a group counts as the sum of as many best scores
  double load_balance_coeff = 0;  // by which the bias moves in a step; 0: it stays as it is

  // Elements of the weights that all tokens meet, and of the experts'.
  int64_t num_shared_parameters() const;
  int64_t num_routed_parameters() const;
};

// Throws UserError for sizes that do not fit together, naming the field of `owner`, such as "DeepSeekV3Args::".
void check_mixture(const MixtureArgs& args, std::string_view owner);

}  // namespace sfsdp::models
