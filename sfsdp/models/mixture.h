// SPDX-License-Identifier: BSD-3-Clause
// A mixture of experts: each token goes through the top_k experts that a router chooses, and all through the shared ones. All
// shapes are static: T k rows, sorted by expert, of which each expert has any number. No token is dropped.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "sfsdp/models/layers.h"
#include "sfsdp/models/mixture_args.h"

namespace sfsdp::models {

// Dimension key: T tokens, D model, X experts, k experts of a token, R = T k rows, F width of an expert.
struct Routes {
  at::Tensor experts_Tk;  // i64, the best first
  at::Tensor weights_Tk;  // f32, by which the experts' outputs are multiplied
};

// Scores and choices are made in float32, whatever the parameters' dtype.
class RouterImpl : public torch::nn::Module {
 public:
  RouterImpl(const MixtureArgs& args, double std);
  // x: [T, D]; bias: [X] f32, added to the scores for the choice alone; undefined without
  Routes forward(const at::Tensor& x_TD, const at::Tensor& bias_X);

 private:
  MixtureArgs args_;
  LinearMap gate_{nullptr};
};
TORCH_MODULE(Router);

// The experts' feed-forwards, stacked.
class GroupedExpertsImpl : public torch::nn::Module {
 public:
  GroupedExpertsImpl(const MixtureArgs& args, double output_std);
  // x: [R, D], rows sorted by expert; ends: [X] i32, at which row each expert's end. Result [R, D].
  at::Tensor forward(const at::Tensor& x_RD, const at::Tensor& ends_X);

 private:
  at::Tensor w1_XFD_, w2_XDF_, w3_XFD_;  // as parameters w1, w2, w3
};
TORCH_MODULE(GroupedExperts);

// Buffers: with Choice::WithBias expert_bias [X] f32, and with load_balance_coeff tokens_per_expert [X] i64, which a forward pass
// in training adds up. Who updates the weights moves expert_bias by these counts and begins them anew.
class MixtureImpl : public torch::nn::Module {
 public:
  MixtureImpl(const MixtureArgs& args, double output_std);
  at::Tensor forward(const at::Tensor& x_BSD);

  // Buffers keep their dtypes: a step of a bias is smaller than what bfloat16 tells apart, and counts are integers.
  void to(at::Device device, c10::ScalarType dtype, bool non_blocking = false) override;
  void to(c10::ScalarType dtype, bool non_blocking = false) override;
  using Module::to;

 private:
  int64_t num_experts_;
  Router router_{nullptr};
  GroupedExperts experts_{nullptr};
  FeedForward shared_experts_{nullptr};  // empty without
  at::Tensor expert_bias_, tokens_per_expert_;
};
TORCH_MODULE(Mixture);

}  // namespace sfsdp::models
