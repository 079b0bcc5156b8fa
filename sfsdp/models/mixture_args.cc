// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/models/mixture_args.h"

#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::models {

int64_t MixtureArgs::num_shared_parameters() const {
  return dim * num_experts + num_shared_experts * 3 * dim * moe_inter_dim;
}

int64_t MixtureArgs::num_routed_parameters() const { return num_experts * 3 * dim * moe_inter_dim; }

// LibTorch's grouped products read rows that begin at multiples of 16 bytes, which are 8 elements of bfloat16.
void check_mixture(const MixtureArgs& args, std::string_view owner) {
  const auto refuse = [&](const char* name, auto got, const auto&... expected) {
    throw UserError(concat(owner, name, " = ", got, "\n  expected ", expected...));
  };
  const std::pair<const char*, int64_t> sizes[] = {{"moe_inter_dim", args.moe_inter_dim},
                                                   {"num_experts", args.num_experts},
                                                   {"top_k", args.top_k},
                                                   {"n_expert_groups", args.n_expert_groups},
                                                   {"n_limited_groups", args.n_limited_groups},
                                                   {"scores_of_group", args.scores_of_group}};
  for (const auto& [name, size] : sizes)
    if (size < 1) refuse(name, size, "at least 1");
  if (args.num_shared_experts < 0) refuse("num_shared_experts", args.num_shared_experts, "at least 0");
  constexpr int64_t kAligned = 8;
  if (args.dim % kAligned != 0) refuse("dim", args.dim, "a multiple of ", kAligned);
  if (args.moe_inter_dim % kAligned != 0) refuse("moe_inter_dim", args.moe_inter_dim, "a multiple of ", kAligned);
  const int64_t groups = args.n_expert_groups;
  if (args.num_experts % groups != 0)
    refuse("n_expert_groups", groups, "a divisor of num_experts = ", args.num_experts);
  if (args.n_limited_groups > groups)
    refuse("n_limited_groups", args.n_limited_groups, "at most n_expert_groups = ", groups);
  const int64_t each = args.num_experts / groups;
  if (groups > 1 && args.scores_of_group > each)
    refuse("scores_of_group", args.scores_of_group, "at most the ", each, " experts of a group");
  if (groups > 1 && args.top_k > each * args.n_limited_groups)
    refuse("top_k", args.top_k, "at most the ", each * args.n_limited_groups, " experts of n_limited_groups");
  if (args.top_k > args.num_experts) refuse("top_k", args.top_k, "at most num_experts = ", args.num_experts);
  if (!(args.load_balance_coeff >= 0)) refuse("load_balance_coeff", args.load_balance_coeff, "a number of at least 0");
  if (args.choice == Choice::ByScore && args.load_balance_coeff > 0)
    refuse("load_balance_coeff", args.load_balance_coeff, "0 where experts have no biases, which it would move");
}

}  // namespace sfsdp::models
