// SPDX-License-Identifier: BSD-3-Clause
// Next-token losses, in float32 whatever the logits' dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

namespace sfsdp::models {

// Mean over all targets. logits: [B, S, V] floating; targets: [B, S] int64 in [0, V). Result f32[].
at::Tensor cross_entropy(const at::Tensor& logits_BSV, const at::Tensor& targets_BS);

// (sum, count) over the targets that are not `ignore_index`; count is f32[].
std::pair<at::Tensor, at::Tensor> cross_entropy_sum(const at::Tensor& logits_BSV, const at::Tensor& targets_BS,
                                                    int64_t ignore_index = -100);

}  // namespace sfsdp::models
