// SPDX-License-Identifier: BSD-3-Clause
// Initialisations that torch::nn::init lacks in C++.
#pragma once

#include <ATen/core/Tensor.h>

namespace sfsdp::models {

// Normal(mean, std) cut off at [low, high] (absolute), by inverting the distribution of a uniform draw: elementwise, so a
// shard can be initialised alone. (torch.nn.init.trunc_normal_ did the same until it began to draw again, which is not.)
void trunc_normal_(at::Tensor tensor, double mean, double std, double low, double high);

}  // namespace sfsdp::models
