// SPDX-License-Identifier: BSD-3-Clause
// The next-token loss, in float32 whatever the logits' dtype.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/Reduction.h>

namespace sfsdp::models {

// Mean over all targets. logits: [B, S, V] floating; targets: [B, S] int64 in [0, V). Result f32[].
inline at::Tensor cross_entropy(const at::Tensor& logits_BSV, const at::Tensor& targets_BS) {
  return at::cross_entropy_loss(logits_BSV.flatten(0, 1).to(at::kFloat), targets_BS.flatten());
}

// The same added up over the targets that are not -100, and their number, i64[]: 0 and 0 where none counts.
struct CountedLoss {
  at::Tensor sum, count;
};
inline CountedLoss counted_cross_entropy(const at::Tensor& logits_BSV, const at::Tensor& targets_BS) {
  constexpr int64_t kIgnored = -100;
  const at::Tensor targets = targets_BS.flatten();
  return {at::cross_entropy_loss(logits_BSV.flatten(0, 1).to(at::kFloat), targets, {}, at::Reduction::Sum, kIgnored),
          targets.ne(kIgnored).sum()};
}

}  // namespace sfsdp::models
