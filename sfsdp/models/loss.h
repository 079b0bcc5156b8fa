// SPDX-License-Identifier: BSD-3-Clause
// The next-token loss, in float32 whatever the logits' dtype.
#pragma once

#include <ATen/ATen.h>

namespace sfsdp::models {

// Mean over all targets. logits: [B, S, V] floating; targets: [B, S] int64 in [0, V). Result f32[].
inline at::Tensor cross_entropy(const at::Tensor& logits_BSV, const at::Tensor& targets_BS) {
  return at::cross_entropy_loss(logits_BSV.flatten(0, 1).to(at::kFloat), targets_BS.flatten());
}

}  // namespace sfsdp::models
