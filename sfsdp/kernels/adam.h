// SPDX-License-Identifier: BSD-3-Clause
// Adam (arXiv 1412.6980) and AdamW (arXiv 1711.05101) in one pass over parameters, moments and gradients, which are clipped on
// the way. In float32, by torch.optim's formulas. Torch-free.
#pragma once

#include <cstdint>

namespace sfsdp::kernels {

// Tensors are of `count` elements.
struct Adam {
  float* param = nullptr;
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  const float* grad = nullptr;
  int64_t count = 0;
  float clip = 1;         // what each gradient is multiplied by first
  bool decoupled = true;  // AdamW: the decay shrinks the parameter; Adam: it is added to the gradient
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
  double step = 1;  // which update this is, from 1 on
};

void adam(const Adam& call);

}  // namespace sfsdp::kernels
