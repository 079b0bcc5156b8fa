// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/planned/own_call.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/exec/planned/adam_call.h"
#include "sfsdp/exec/planned/attention_call.h"
#include "sfsdp/exec/planned/cross_entropy_call.h"
#include "sfsdp/exec/planned/rms_norm_call.h"
#include "sfsdp/exec/planned/rope_call.h"
#include "sfsdp/exec/planned/wide_grad_call.h"
#include "sfsdp/kernels/of_op.h"

namespace sfsdp::exec {

OwnCall::OwnCall(const ir::Op& op, std::vector<const ir::Value*> results)
    : op_(op), results_(std::move(results)), has_place_(results_.size(), false), given_(results_.size()) {}

OwnCall::OwnCall(const ir::Op& op) : OwnCall(op, {}) {
  for (const auto& result : op.results()) results_.push_back(result.get());
  has_place_.resize(results_.size(), false);
  given_.resize(results_.size());
}

bool OwnCall::write_to(size_t index, const at::Tensor& place) {
  if (!can_write(index, place)) return false;
  has_place_[index] = true;
  given_[index] = place;
  return true;
}

std::span<at::Tensor> OwnCall::results() {
  for (size_t i = 0; i < given_.size(); ++i) {
    if (has_place_[i]) continue;
    const ir::Type& type = results_[i]->type();
    if (type.kind == ir::Type::Kind::Token) continue;
    const auto options = at::TensorOptions(capture::scalar_type_of(type.dtype));
    given_[i] = type.strides.empty() ? at::empty(type.shape(), options)
                                     : at::empty_strided(type.shape(), type.strides, options);
  }
  return given_;
}

at::Tensor by_row(const at::Tensor& tensor) {
  return tensor.dim() > 0 && tensor.stride(-1) == 1 ? tensor : tensor.contiguous();
}

std::unique_ptr<OwnCall> make_own_call(const ir::Op& op, const ir::Op* within, const Groups& groups) {
  if (op.attr_or<std::string>("attention_kernel", "") == "sfsdp.flash")
    return std::make_unique<AttentionCall>(op, groups);
  if (op.attr_or<std::string>("row_kernel", "") != "sfsdp.rows") return nullptr;
  SFSDP_CHECK(kernels::computes_rows(op), op.opcode, " %", op.result()->name(), " is not what sfsdp.rows computes");
  if (op.is("adamw", "adam")) return std::make_unique<AdamCall>(op, within, groups);
  if (op.is("embedding")) return std::make_unique<EmbeddingPartCall>(op, groups);
  if (op.is("embedding_backward")) return std::make_unique<EmbeddingGradCall>(op, op, groups);
  if (op.is("rope", "rope_inverse")) return std::make_unique<RopeCall>(op);
  if (op.is("rms_norm", "rms_norm_backward")) return std::make_unique<RmsNormCall>(op);
  if (op.is("cross_entropy", "cross_entropy_backward", "cross_entropy_parts"))
    return std::make_unique<CrossEntropyCall>(op, groups);
  if (!within) return nullptr;  // a cast by itself
  if (within->is("embedding_backward")) return std::make_unique<EmbeddingGradCall>(op, *within, groups);
  return std::make_unique<WideProductCall>(op);
}

std::vector<const ir::Value*> operands_of_call(const ir::Op& op, const ir::Op* within) {
  std::vector<const ir::Value*> operands(op.operands.begin(), op.operands.end());
  if (!within) return operands;
  const auto at = std::ranges::find(operands, within->result());
  SFSDP_CHECK(at != operands.end(), op.opcode, " does not read what ", within->opcode, " makes");
  *at = within->operands[0];
  operands.insert(operands.end(), within->operands.begin() + 1, within->operands.end());
  return operands;
}

}  // namespace sfsdp::exec
