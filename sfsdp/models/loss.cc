// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/models/loss.h"

#include <ATen/ATen.h>

namespace sfsdp::models {

at::Tensor cross_entropy(const at::Tensor& logits_BSV, const at::Tensor& targets_BS) {
  return at::cross_entropy_loss(logits_BSV.flatten(0, 1).to(at::kFloat), targets_BS.flatten());
}

std::pair<at::Tensor, at::Tensor> cross_entropy_sum(const at::Tensor& logits_BSV, const at::Tensor& targets_BS,
                                                    int64_t ignore_index) {
  const at::Tensor targets = targets_BS.flatten();
  at::Tensor sum =
      at::cross_entropy_loss(logits_BSV.flatten(0, 1).to(at::kFloat), targets, {}, at::Reduction::Sum, ignore_index);
  return {sum, targets.ne(ignore_index).sum().to(at::kFloat)};
}

}  // namespace sfsdp::models
