// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/models/deepseek_v3/args.h"

#include <cmath>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::models {
namespace {

struct Flavor {
  const char* name;
  DeepSeekV3Args args;
};

DeepSeekV3Args debugmodel() {
  DeepSeekV3Args args;
  args.yarn->mscale = args.yarn->mscale_all_dim = 0.7;
  args.load_balance_coeff = 1e-3;
  return args;
}

DeepSeekV3Args lite_16b() {
  DeepSeekV3Args args = debugmodel();
  args.vocab_size = 102400;
  args.dim = 2048;
  args.inter_dim = 10944;
  args.moe_inter_dim = 1408;
  args.n_layers = 27;
  args.num_experts = 64;
  args.top_k = 6;
  return args;
}

DeepSeekV3Args v2_236b() {
  DeepSeekV3Args args;
  args.vocab_size = 102400;
  args.dim = 5120;
  args.inter_dim = 12288;
  args.moe_inter_dim = 1536;
  args.n_layers = 60;
  args.n_heads = 128;
  args.q_lora_rank = 1536;
  args.num_experts = 160;
  args.top_k = 6;
  args.route_scale = 16;
  args.n_expert_groups = 8;
  args.n_limited_groups = 3;
  args.scores_of_group = 1;
  args.load_balance_coeff = 1e-3;
  return args;
}

DeepSeekV3Args v3_671b() {
  DeepSeekV3Args args = v2_236b();
  args.vocab_size = 129280;
  args.dim = 7168;
  args.inter_dim = 18432;
  args.moe_inter_dim = 2048;
  args.n_layers = 61;
  args.n_dense_layers = 3;
  args.num_experts = 256;
  args.num_shared_experts = 1;
  args.top_k = 8;
  args.score_func = RouterScore::Sigmoid;
  args.route_norm = true;
  args.route_scale = 2.5;
  args.n_limited_groups = 4;
  args.scores_of_group = 2;
  return args;
}

const std::vector<Flavor>& flavors() {
  static const std::vector<Flavor> kFlavors = {
      {"debugmodel", debugmodel()}, {"16B", lite_16b()}, {"236B", v2_236b()}, {"671B", v3_671b()}};
  return kFlavors;
}

template <class Got, class... Expected>
[[noreturn]] void refuse(const char* name, Got got, const Expected&... expected) {
  throw UserError(concat(name, " = ", got, "\n  expected ", expected...));
}

void check_sizes(const DeepSeekV3Args& args) {
  const std::pair<const char*, int64_t> sizes[] = {{"DeepSeekV3Args::dim", args.dim},
                                                   {"DeepSeekV3Args::inter_dim", args.inter_dim},
                                                   {"DeepSeekV3Args::n_layers", args.n_layers},
                                                   {"DeepSeekV3Args::n_heads", args.n_heads},
                                                   {"DeepSeekV3Args::vocab_size", args.vocab_size},
                                                   {"DeepSeekV3Args::kv_lora_rank", args.kv_lora_rank},
                                                   {"DeepSeekV3Args::qk_nope_head_dim", args.qk_nope_head_dim},
                                                   {"DeepSeekV3Args::v_head_dim", args.v_head_dim}};
  for (const auto& [name, size] : sizes)
    if (size < 1) refuse(name, size, "at least 1");
  const std::pair<const char*, int64_t> optional[] = {{"DeepSeekV3Args::q_lora_rank", args.q_lora_rank},
                                                      {"DeepSeekV3Args::n_dense_layers", args.n_dense_layers}};
  for (const auto& [name, size] : optional)
    if (size < 0) refuse(name, size, "at least 0");
  if (args.n_dense_layers > args.n_layers)
    refuse("DeepSeekV3Args::n_dense_layers", args.n_dense_layers, "at most n_layers = ", args.n_layers);
}

void check_attention(const DeepSeekV3Args& args) {
  if (args.qk_rope_head_dim < 2 || args.qk_rope_head_dim % 2 != 0)
    refuse("DeepSeekV3Args::qk_rope_head_dim", args.qk_rope_head_dim, "an even width: rotary embedding turns pairs");
  if (args.v_head_dim > args.qk_head_dim())
    refuse("DeepSeekV3Args::v_head_dim", args.v_head_dim,
           "at most qk_nope_head_dim + qk_rope_head_dim = ", args.qk_head_dim());
  if (!(args.rope_theta > 1)) refuse("DeepSeekV3Args::rope_theta", args.rope_theta, "a number above 1");
  const std::pair<const char*, double> eps[] = {{"DeepSeekV3Args::norm_eps", args.norm_eps},
                                                {"DeepSeekV3Args::latent_norm_eps", args.latent_norm_eps},
                                                {"DeepSeekV3Args::final_norm_eps", args.final_norm_eps}};
  for (const auto& [name, value] : eps)
    if (!(value >= 0)) refuse(name, value, "a number of at least 0");
  if (!args.yarn) return;
  const Yarn& yarn = *args.yarn;
  if (!(yarn.factor >= 1)) refuse("Yarn::factor", yarn.factor, "at least 1");
  if (!(yarn.original_seq_len > 0)) refuse("Yarn::original_seq_len", yarn.original_seq_len, "a number above 0");
  if (!(yarn.beta_slow > 0)) refuse("Yarn::beta_slow", yarn.beta_slow, "a number above 0");
  if (!(yarn.beta_fast > yarn.beta_slow))
    refuse("Yarn::beta_fast", yarn.beta_fast, "more than Yarn::beta_slow = ", yarn.beta_slow);
}

struct Counts {
  int64_t embedding = 0, dense = 0, routed = 0;  // `dense` has the embedding too
};

Counts counts_of(const DeepSeekV3Args& a) {
  const int64_t queries = a.n_heads * a.qk_head_dim();
  const int64_t wq = a.q_lora_rank == 0 ? a.dim * queries : a.dim * a.q_lora_rank + a.q_lora_rank * (1 + queries);
  const int64_t latent = a.dim * (a.kv_lora_rank + a.qk_rope_head_dim) + a.kv_lora_rank;
  const int64_t wkv_b = a.kv_lora_rank * a.n_heads * (a.qk_nope_head_dim + a.v_head_dim);
  const int64_t layer = wq + latent + wkv_b + a.n_heads * a.v_head_dim * a.dim + 2 * a.dim;
  const int64_t mixtures = a.n_layers - a.n_dense_layers;
  Counts counts;
  counts.embedding = a.vocab_size * a.dim;
  counts.dense = 2 * counts.embedding + a.dim + a.n_layers * layer + a.n_dense_layers * 3 * a.dim * a.inter_dim +
                 mixtures * a.mixture().num_shared_parameters();
  counts.routed = mixtures * a.mixture().num_routed_parameters();
  return counts;
}

}  // namespace

double Yarn::growth(double m) const { return 0.1 * m * std::log(factor) + 1; }

double Yarn::rotation_scale() const {
  return mscale != 0 && mscale_all_dim != 0 ? growth(mscale) / growth(mscale_all_dim) : growth(1);
}

double DeepSeekV3Args::softmax_scale() const {
  const double growth = yarn ? yarn->growth(yarn->mscale_all_dim) : 1;
  return growth * growth / std::sqrt(static_cast<double>(qk_head_dim()));
}

MixtureArgs DeepSeekV3Args::mixture() const {
  return {.dim = dim,
          .moe_inter_dim = moe_inter_dim,
          .num_experts = num_experts,
          .num_shared_experts = num_shared_experts,
          .top_k = top_k,
          .score_func = score_func,
          .choice = expert_bias ? Choice::WithBias : Choice::ByScore,
          .route_norm = route_norm,
          .route_scale = route_scale,
          .n_expert_groups = n_expert_groups,
          .n_limited_groups = n_limited_groups,
          .scores_of_group = scores_of_group,
          .load_balance_coeff = load_balance_coeff};
}

int64_t DeepSeekV3Args::num_parameters() const {
  const Counts counts = counts_of(*this);
  return counts.dense + counts.routed;
}

int64_t DeepSeekV3Args::num_active_parameters() const {
  const Counts counts = counts_of(*this);
  return counts.dense + counts.routed * top_k / num_experts;
}

double DeepSeekV3Args::flops_per_token(int64_t seq_len) const {
  const auto matmul = static_cast<double>(num_active_parameters() - counts_of(*this).embedding);
  return 6.0 * matmul + 12.0 * static_cast<double>(n_layers * n_heads * (dim / n_heads) * seq_len);
}

DeepSeekV3Args deepseek_v3_args(std::string_view flavor) {
  for (const Flavor& f : flavors())
    if (flavor == f.name) return f.args;
  throw UserError(concat("ModelSpec::flavor = ", flavor, "\n  expected one of ", join(deepseek_v3_flavors(), ", "),
                         did_you_mean(flavor, deepseek_v3_flavors())));
}

std::vector<std::string> deepseek_v3_flavors() {
  std::vector<std::string> names;
  for (const Flavor& f : flavors()) names.emplace_back(f.name);
  return names;
}

void check_args(const DeepSeekV3Args& args) {
  check_sizes(args);
  check_attention(args);
  if (args.n_dense_layers < args.n_layers) check_mixture(args.mixture(), "DeepSeekV3Args::");
}

}  // namespace sfsdp::models
