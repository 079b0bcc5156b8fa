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
  const bool has_scale = op.find_attr<double>("scale") || op.find_attr<int64_t>("scale");
  const double scale = has_scale ? ir::number_of(op, "scale") : 1 / std::sqrt(static_cast<double>(q[3]));
  const AttentionShape shape = {.batch = q[0],
                                .heads = q[1],
                                .groups = k[1],
                                .queries = q[2],
                                .keys = k[2],
                                .width = q[3],
                                .causal = op.attr_or("is_causal", false),
                                .scale = static_cast<float>(scale),
                                .dtype = type.dtype,
                                .is_part = op.has_attr("axis")};
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

// A number that LibTorch's schema calls a Scalar.
std::optional<double> scalar_of(const ir::Op& op, const char* name, double otherwise) {
  if (!op.has_attr(name)) return otherwise;
  if (const auto* number = op.find_attr<double>(name)) return *number;
  if (const auto* number = op.find_attr<int64_t>(name)) return static_cast<double>(*number);
  return std::nullopt;
}

// Whether the operand's shape is the result's last dimensions.
bool is_last_dimensions(const ir::Type& operand, const ir::Type& result) {
  std::vector<int64_t> from = operand.shape(), to = result.shape();
  from.erase(from.begin(), std::ranges::find_if(from, [](int64_t size) { return size != 1; }));
  return from.size() <= to.size() && std::equal(from.rbegin(), from.rend(), to.rbegin());
}

}  // namespace

std::optional<PointOpOf> point_op_of(const ir::Op& op) {
  const auto is_row_major = [&](const ir::Value* value) {
    return value && value->type().kind == ir::Type::Kind::Tensor && value->type().strides.empty() && is_known(value) &&
           is_last_dimensions(value->type(), op.result()->type());
  };
  if (op.results().size() != 1 || !is_row_major(op.result()) || op.result()->type().numel() == 0 ||
      !std::ranges::all_of(op.operands, is_row_major))
    return std::nullopt;
  const auto made = [&](PointOp kind, size_t operands, std::optional<double> scalar = 1,
                        bool gradient = false) -> std::optional<PointOpOf> {
    // A gradient is of the larger of the two: LibTorch's ops on gradients do not broadcast.
    if (!scalar || op.operands.size() != operands) return std::nullopt;
    if (gradient && op.operands[0]->type().numel() != op.operands[1]->type().numel()) return std::nullopt;
    return PointOpOf{kind, 0, operands - 1, static_cast<float>(*scalar)};
  };
  const auto* approximate = op.find_attr<std::string>("approximate");
  const bool by_tanh = approximate && *approximate == "tanh";
  if (op.is("aten.add.Tensor")) return made(PointOp::Add, 2, scalar_of(op, "alpha", 1));
  if (op.is("aten.sub.Tensor")) {
    const auto alpha = scalar_of(op, "alpha", 1);
    return made(PointOp::Add, 2, alpha ? std::optional(-*alpha) : std::nullopt);
  }
  if (op.is("aten.mul.Tensor")) return made(PointOp::Multiply, 2);
  if (op.is("aten.mul.Scalar"))
    return made(PointOp::Scale, 1, op.has_attr("other") ? scalar_of(op, "other", 1) : std::nullopt);
  if (op.is("aten.sigmoid")) return made(PointOp::Sigmoid, 1);
  if (op.is("aten.silu")) return made(PointOp::Silu, 1);
  if (op.is("aten.silu_backward")) return made(PointOp::SiluBackward, 2, 1, true);
  if (op.is("aten.gelu") && by_tanh) return made(PointOp::GeluTanh, 1);
  if (op.is("aten.gelu_backward") && by_tanh) return made(PointOp::GeluTanhBackward, 2, 1, true);
  if (op.is("aten.relu")) return made(PointOp::Relu, 1);
  if (op.is("aten.threshold_backward"))
    return made(PointOp::ReluBackward, 2, op.has_attr("threshold") ? scalar_of(op, "threshold", 0) : std::nullopt,
                true);
  return std::nullopt;
}

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
  if (op.is("embedding"))
    return op.has_attr("axis") && op.operands[1]->type().dtype == ir::DType::i64 && are_contiguous(op);
  if (op.is("embedding_backward")) return is_known(op.operands[0]) && is_known(op.result()) && counts_once(op);
  if (point_op_of(op)) return true;
  if (op.is("rms_norm", "rms_norm_backward")) return std::ranges::all_of(op.operands, &is_known) && are_contiguous(op);
  if (!op.is("cross_entropy", "cross_entropy_backward", "cross_entropy_parts")) return false;
  const bool backward = op.is("cross_entropy_backward");
  const ir::DType logits = op.operands[backward ? 1 : 0]->type().dtype;
  const ir::DType loss = (backward ? *op.operands[0] : *op.result()).type().dtype;
  return (logits == ir::DType::f32 || logits == ir::DType::bf16) && loss == ir::DType::f32 && are_contiguous(op);
}

}  // namespace sfsdp::kernels
