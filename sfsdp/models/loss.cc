// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/models/loss.h"

#include <ATen/ATen.h>

namespace sfsdp::models {

at::Tensor cross_entropy(const at::Tensor& logits_BSV, const at::Tensor& targets_BS) {
  return at::cross_entropy_loss(logits_BSV.flatten(0, 1).to(at::kFloat), targets_BS.flatten());
}

}  // namespace sfsdp::models
