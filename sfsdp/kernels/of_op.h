// SPDX-License-Identifier: BSD-3-Clause
// Which ops of a graph the kernels here compute: what a plan may name, and what an executor then calls.
#pragma once

#include <optional>

#include "sfsdp/ir/graph.h"
#include "sfsdp/kernels/attention.h"
#include "sfsdp/kernels/pointwise.h"

namespace sfsdp::kernels {

// sfsdp.flash: sdpa and sdpa_backward, all operands of one dtype, without dropout or a mask but that of documents, that can_attend
// takes, of a part of the queries (axis=) too; else nullopt.
std::optional<AttentionShape> attention_of(const ir::Op& op);

// An op on elements as the block machine has it (pointwise.h): what it computes, of which operands. Tensors in float32 or bfloat16,
// row-major; an operand may be as large as some last dimensions of the result, and begins again. Nullopt: it does not.
struct PointOpOf {
  PointOp op;
  size_t a, b;  // operands
  float scalar = 1;
};
std::optional<PointOpOf> point_op_of(const ir::Op& op);

// sfsdp.rows, each in float32 or bfloat16 and with row-major results: rms_norm and rms_norm_backward; cross_entropy and
// cross_entropy_backward, the loss in float32, and cross_entropy_parts; embedding_backward, and embedding with axis=; rope and
// rope_inverse, with any strides; the cast to float32 of a weight's gradient in bfloat16; adamw
// and adam, all in float32; ops on elements (point_op_of).
bool computes_rows(const ir::Op& op);

// The op that a kernel of rows computes along with `op`, if nobody else reads what it makes: the clipping before an update, the
// product or the gradient of an embedding before its cast. Null: none.
const ir::Op* computed_with(const ir::Op& op);

}  // namespace sfsdp::kernels
