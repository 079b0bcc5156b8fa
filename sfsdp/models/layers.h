// SPDX-License-Identifier: BSD-3-Clause
// Modules that several models are built of. Source of names and shapes: TorchTitan models/llama3.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace sfsdp::models {

// Dimension key: B batch, S sequence, D model.
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

// SwiGLU: w2 (silu(w1 x) * w3 x).
class FeedForwardImpl : public torch::nn::Module {
 public:
  FeedForwardImpl(int64_t dim, int64_t hidden, double output_std);
  at::Tensor forward(const at::Tensor& x_BSD);

 private:
  LinearMap w1_{nullptr}, w2_{nullptr}, w3_{nullptr};
};
TORCH_MODULE(FeedForward);

}  // namespace sfsdp::models
