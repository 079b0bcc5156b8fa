// SPDX-License-Identifier: BSD-3-Clause
// Which ops of a graph the kernels here compute: what a plan may name, and what an executor then calls.
#pragma once

#include <optional>

#include "sfsdp/ir/graph.h"
#include "sfsdp/kernels/attention.h"

namespace sfsdp::kernels {

// sfsdp.flash: sdpa and sdpa_backward, all operands of one dtype, without dropout or a mask but that of documents, that can_attend
// takes; else nullopt.
std::optional<AttentionShape> attention_of(const ir::Op& op);

// sfsdp.rows: cross_entropy and cross_entropy_backward of logits in float32 or bfloat16, the loss in float32, results row-major.
bool computes_rows(const ir::Op& op);

}  // namespace sfsdp::kernels
