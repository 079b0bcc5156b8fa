// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/kernels/of_op.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "sfsdp/ir/opset.h"
#include "sfsdp/kernels/rope.h"

namespace sfsdp::kernels {

std::optional<AttentionShape> attention_of(const ir::Op& op) {
  if (!op.is("sdpa", "sdpa_backward")) return std::nullopt;
  const bool backward = op.is("sdpa_backward");
  const size_t query = backward ? 1 : 0, tensors = backward ? 5 : 3, mask = backward ? 6 : 3;
  const ir::Type& type = op.operands[query]->type();
  const std::vector<int64_t> q = type.shape(), k = op.operands[query + 1]->type().shape();
  const bool masked = op.operands.size() > mask && op.operands[mask] && !op.attr_or("documents", false);
  if (masked || op.attr_or("dropout_p", 0.0) != 0) return std::nullopt;
  for (size_t i = 0; i < tensors; ++i)
    if (op.operands[i]->type().dtype != type.dtype) return std::nullopt;
  const double* scale = op.find_attr<double>("scale");
  const AttentionShape shape = {.batch = q[0],
                                .heads = q[1],
                                .groups = k[1],
                                .queries = q[2],
                                .keys = k[2],
                                .width = q[3],
                                .causal = op.attr_or("is_causal", false),
                                .scale = static_cast<float>(scale ? *scale : 1 / std::sqrt(static_cast<double>(q[3]))),
                                .dtype = type.dtype};
  return can_attend(shape) ? std::optional(shape) : std::nullopt;
}

namespace {

bool is_known(const ir::Value* value) {
  return !value || value->type().dtype == ir::DType::f32 || value->type().dtype == ir::DType::bf16;
}

bool are_contiguous(const ir::Op& op) {
  return std::ranges::all_of(op.results(), [](const auto& result) { return result->type().strides.empty(); });
}

// Not: divided by how often its id stands there.
bool counts_once(const ir::Op& embedding) {
  return !embedding.attr_or("scale_grad_by_freq", false) && embedding.operands[1]->type().dtype == ir::DType::i64 &&
         are_contiguous(embedding);
}

bool turns_rows(const ir::Op& op) {
  const auto is_table = [&](const ir::Value* table) {
    return op.operands.size() == 2 ? table->type().dtype == ir::DType::c64 : is_known(table);
  };
  const bool has_tables = std::all_of(op.operands.begin() + 1, op.operands.end(), is_table);
  return is_known(op.operands[0]) && has_tables && op.result()->type().dims.size() <= kRopeDims + 1 &&
         (op.operands.size() == 2 || op.operands[1]->type().dtype == op.operands[2]->type().dtype);
}

}  // namespace

const ir::Op* computed_with(const ir::Op& op) {
  if (op.is("adamw", "adam")) {
    const ir::Op& clip = *op.operands[ir::gradient_operand(op)]->producer();
    const bool by_number = clip.is("scale") && clip.operands[1]->type().numel() == 1;
    return by_number && clip.operands[1]->type().dtype == ir::DType::f32 ? &clip : nullptr;
  }
  if (!op.is("cast")) return nullptr;
  const ir::Op& made = *op.operands[0]->producer();
  return made.is("linear_dw", "embedding_backward") ? &made : nullptr;
}

bool computes_rows(const ir::Op& op) {
  const auto is_wide = [](const ir::Value* value) { return value->type().dtype == ir::DType::f32; };
  if (op.is("adamw", "adam")) return std::ranges::all_of(op.operands, is_wide);
  if (op.is("cast"))
    return computed_with(op) && is_wide(op.result()) && op.operands[0]->type().dtype == ir::DType::bf16 &&
           (computed_with(op)->is("linear_dw") || counts_once(*computed_with(op)));
  if (op.is("rope", "rope_inverse")) return turns_rows(op);
  if (op.is("embedding_backward")) return is_known(op.operands[0]) && is_known(op.result()) && counts_once(op);
  if (op.is("rms_norm", "rms_norm_backward")) return std::ranges::all_of(op.operands, &is_known) && are_contiguous(op);
  if (!op.is("cross_entropy", "cross_entropy_backward")) return false;
  const bool backward = op.is("cross_entropy_backward");
  const ir::DType logits = op.operands[backward ? 1 : 0]->type().dtype;
  const ir::DType loss = (backward ? *op.operands[0] : *op.result()).type().dtype;
  return (logits == ir::DType::f32 || logits == ir::DType::bf16) && loss == ir::DType::f32 && are_contiguous(op);
}

}  // namespace sfsdp::kernels
