// SPDX-License-Identifier: BSD-3-Clause
// Initialisations that torch::nn::init lacks in C++.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace sfsdp::models {

// Normal(mean, std) cut off at [low, high] (absolute), by inverting the distribution of a uniform draw: elementwise, so a
// shard can be initialised alone. (torch.nn.init.trunc_normal_ did the same until it began to draw again, which is not.)
inline void trunc_normal_(at::Tensor tensor, double mean, double std, double low, double high) {
  at::NoGradGuard no_grad;
  const auto cdf = [&](double x) { return (1.0 + std::erf((x - mean) / (std * std::numbers::sqrt2))) / 2.0; };
  tensor.uniform_(2 * cdf(low) - 1, 2 * cdf(high) - 1);
  tensor.erfinv_();
  tensor.mul_(std * std::numbers::sqrt2);
  tensor.add_(mean);
  // A cut far out lets the uniform draw be -1 exactly, once in 2^24, and its inverse is -infinity: an outlier of 100 std
  // where the cut is ±2. The next number inverts to -5.2 std, so nothing else is touched.
  tensor.clamp_(std::max(low, mean - 6 * std), std::min(high, mean + 6 * std));
}

// A linear map's weights as TorchTitan's models begin: Normal(0, std), cut off at ±2.
inline void init_linear(const at::Tensor& weight, double std) { trunc_normal_(weight, 0.0, std, -2.0, 2.0); }

}  // namespace sfsdp::models
