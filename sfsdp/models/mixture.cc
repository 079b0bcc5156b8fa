// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/models/mixture.h"

#include <ATen/ATen.h>
#include <torch/types.h>

#include <limits>

#include "sfsdp/models/init.h"

namespace sfsdp::models {
namespace {

// -infinity at the experts of all groups but the n_limited_groups whose best scores add up to most.
at::Tensor within_best_groups(const at::Tensor& choice_TX, const MixtureArgs& args) {
  const int64_t tokens = choice_TX.size(0), groups = args.n_expert_groups;
  const at::Tensor grouped = choice_TX.view({tokens, groups, -1});
  const at::Tensor score = std::get<0>(grouped.topk(args.scores_of_group, -1)).sum(-1);
  const at::Tensor best = std::get<1>(score.topk(args.n_limited_groups, -1));
  const at::Tensor left_out = at::ones({tokens, groups}, at::kBool).scatter(1, best, false);
  return grouped.masked_fill(left_out.unsqueeze(-1), -std::numeric_limits<double>::infinity()).view_as(choice_TX);
}

}  // namespace

RouterImpl::RouterImpl(const MixtureArgs& args, double std) : args_(args) {
  gate_ = register_module("gate", LinearMap(args.dim, args.num_experts));
  init_linear(gate_->weight, std);
}

Routes RouterImpl::forward(const at::Tensor& x_TD, const at::Tensor& bias_X) {
  const at::Tensor logits = at::linear(x_TD.to(at::kFloat), gate_->weight.to(at::kFloat));
  const at::Tensor scores_TX = args_.score_func == RouterScore::Sigmoid ? logits.sigmoid() : logits.softmax(-1);
  at::Tensor choice_TX = scores_TX.detach();
  if (bias_X.defined()) choice_TX = choice_TX + bias_X;
  if (args_.n_expert_groups > 1) choice_TX = within_best_groups(choice_TX, args_);
  const at::Tensor experts = std::get<1>(choice_TX.topk(args_.top_k, -1));
  at::Tensor weights = scores_TX.gather(1, experts);
  if (args_.route_norm) weights = weights / (weights.sum(-1, /*keepdim=*/true) + 1e-20);
  return {experts, weights * args_.route_scale};
}

GroupedExpertsImpl::GroupedExpertsImpl(const MixtureArgs& args, double output_std) {
  const int64_t X = args.num_experts, D = args.dim, F = args.moe_inter_dim;
  w1_XFD_ = register_parameter("w1", torch::empty({X, F, D}));
  w2_XDF_ = register_parameter("w2", torch::empty({X, D, F}));
  w3_XFD_ = register_parameter("w3", torch::empty({X, F, D}));
  init_linear(w1_XFD_, 0.02);
  init_linear(w2_XDF_, output_std);
  init_linear(w3_XFD_, output_std);
}

at::Tensor GroupedExpertsImpl::forward(const at::Tensor& x_RD, const at::Tensor& ends_X) {
  const auto map = [&](const at::Tensor& x, const at::Tensor& w) {
    return at::_grouped_mm(x, w.transpose(-2, -1), ends_X);
  };
  return map(at::silu(map(x_RD, w1_XFD_)) * map(x_RD, w3_XFD_), w2_XDF_);
}

MixtureImpl::MixtureImpl(const MixtureArgs& args, double output_std) : num_experts_(args.num_experts) {
  router_ = register_module("router", Router(args, output_std));
  experts_ = register_module("experts", GroupedExperts(args, output_std));
  if (args.num_shared_experts > 0)
    shared_experts_ = register_module("shared_experts",
                                      FeedForward(args.dim, args.num_shared_experts * args.moe_inter_dim, output_std));
  if (args.choice == Choice::ByScore) return;
  expert_bias_ = register_buffer("expert_bias", torch::zeros({args.num_experts}));
  if (args.load_balance_coeff > 0)
    tokens_per_expert_ = register_buffer("tokens_per_expert", torch::zeros({args.num_experts}, torch::kLong));
}

void MixtureImpl::to(at::Device device, c10::ScalarType dtype, bool non_blocking) {
  Module::to(device, non_blocking);
  to(dtype, non_blocking);
}

void MixtureImpl::to(c10::ScalarType dtype, bool non_blocking) {
  const auto data_of = [](const at::Tensor& buffer) { return buffer.defined() ? buffer.detach() : buffer; };
  const at::Tensor bias = data_of(expert_bias_), counts = data_of(tokens_per_expert_);
  Module::to(dtype, non_blocking);
  if (bias.defined()) expert_bias_.set_data(bias);
  if (counts.defined()) tokens_per_expert_.set_data(counts);
}

at::Tensor MixtureImpl::forward(const at::Tensor& x_BSD) {
  const at::Tensor x_TD = x_BSD.flatten(0, 1);
  const int64_t tokens = x_TD.size(0);
  const auto [experts_Tk, weights_Tk] = router_->forward(x_TD, expert_bias_);
  const int64_t k = experts_Tk.size(1);
  const at::Tensor expert_R = experts_Tk.flatten();
  const at::Tensor counts_X = at::zeros({num_experts_}, at::kLong).scatter_add(0, expert_R, at::ones_like(expert_R));
  if (is_training() && tokens_per_expert_.defined()) tokens_per_expert_.add_(counts_X);
  // A stable sort: an expert's rows stand in the order of the tokens.
  const at::Tensor order_R = expert_R.argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  const at::Tensor place_R = at::empty_like(order_R).scatter(0, order_R, at::arange(tokens * k, at::kLong));
  const at::Tensor rows_RD = x_TD.index_select(0, order_R.floor_divide(k));
  const at::Tensor out_RD = experts_->forward(rows_RD, counts_X.cumsum(0).to(at::kInt));
  const at::Tensor out_TkD = out_RD.index_select(0, place_R).view({tokens, k, -1});
  at::Tensor out_TD = (out_TkD.to(at::kFloat) * weights_Tk.unsqueeze(-1)).sum(1).to(x_TD.scalar_type());
  if (shared_experts_) out_TD = shared_experts_->forward(x_TD) + out_TD;
  return out_TD.view_as(x_BSD);
}

}  // namespace sfsdp::models
