// SPDX-License-Identifier: BSD-3-Clause
// torch::linear and its gradients: products with a matrix that is read transposed, over the last dimension of an input of
// any number of dimensions. Other products are matmul. Left alone: a bias or a product that is scaled (alpha, beta), a bias of
// more than one dimension.
#include "sfsdp/ir/opset.h"
#include "sfsdp/passes/canonical/proposals.h"

namespace sfsdp::passes {
namespace {

using ir::Op, ir::Value;

bool is_transposed(const Value* value) {
  const auto& strides = value->type().strides;
  return strides.size() == 2 && strides[0] == 1 && strides[1] == value->type().dims[0].size;
}

// What a matrix of rows was before its dimensions were joined: of the same width.
Value* before_joining(Value* rows) {
  const Op& op = *rows->producer();
  if (!ir::has_flag(op, ir::kReshape)) return rows;
  const ir::Type& type = op.operands[0]->type();
  const bool same = !type.dims.empty() && type.dims.back().size == rows->type().dims.back().size &&
                    type.numel() == rows->type().numel() && type.strides.empty();
  return same ? op.operands[0] : rows;
}

// What a view of two dimensions shows transposed.
Value* before_transposing(Value* value) {
  const Op& op = *value->producer();
  return ir::has_flag(op, ir::kPermute) && op.operands[0]->type().dims.size() == 2 ? op.operands[0] : nullptr;
}

}  // namespace

std::vector<Proposal> propose_linear(Op* op, const OpFinder&) {
  if (op->is("aten.bmm")) return {{"matmul", op->operands, {}}};
  if (op->is("aten.addmm")) {
    Value *bias = op->operands[0], *a = before_joining(op->operands[1]), *b = op->operands[2];
    if (bias->type().dims.size() != 1) return {};
    if (Value* weight = is_transposed(b) ? before_transposing(b) : nullptr) return {{"linear", {a, weight, bias}, {}}};
    return {{"matmul", {a, b, bias}, {}}};
  }
  if (!op->is("aten.mm")) return {};
  Value *a = op->operands[0], *b = op->operands[1];
  if (Value* weight = is_transposed(b) ? before_transposing(b) : nullptr)
    return {{"linear", {before_joining(a), weight}, {}}};
  const bool of_linear =
      op->bwd_of && op->bwd_of->is("aten.mm", "aten.addmm") && is_transposed(op->bwd_of->operands.back());
  if (Value* grad = of_linear && is_transposed(a) ? before_transposing(a) : nullptr)
    return {{"linear_dw", {before_joining(grad), before_joining(b)}, {}}};
  if (of_linear && !is_transposed(a)) return {{"linear_dx", {before_joining(a), b}, {}}};
  return {{"matmul", {before_joining(a), b}, {}}};
}

}  // namespace sfsdp::passes
