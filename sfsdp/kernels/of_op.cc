// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/kernels/of_op.h"

#include <algorithm>
#include <cmath>
#include <vector>

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

bool computes_rows(const ir::Op& op) {
  if (!op.is("cross_entropy", "cross_entropy_backward")) return false;
  const bool backward = op.is("cross_entropy_backward");
  const ir::DType logits = op.operands[backward ? 1 : 0]->type().dtype;
  const ir::DType loss = (backward ? *op.operands[0] : *op.result()).type().dtype;
  return (logits == ir::DType::f32 || logits == ir::DType::bf16) && loss == ir::DType::f32 &&
         std::ranges::all_of(op.results(), [](const auto& result) { return result->type().strides.empty(); });
}

}  // namespace sfsdp::kernels
