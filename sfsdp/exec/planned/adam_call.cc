// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/planned/adam_call.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "sfsdp/ir/opset.h"

namespace sfsdp::exec {
namespace {

constexpr int64_t kElementsOfThread = int64_t{1} << 15;

}  // namespace

AdamCall::AdamCall(const ir::Op& op, const ir::Op* clip, const Groups& groups) : OwnCall(op), clips_(clip) {
  int64_t rank = 0;  // of the axes that the bucket is cut over
  if (const auto axes = ir::axes_of(op))
    if (const auto group = groups.find(axis_key(*axes)); group != groups.end()) rank = group->second->rank();
  const int64_t numel = op.operands[0]->type().numel();
  segments_ = ir::update_segments(op, rank * numel, numel);
  whole_.decoupled = op.is("adamw");
  whole_.beta1 = ir::number_of(op, "beta1");
  whole_.beta2 = ir::number_of(op, "beta2");
  whole_.eps = ir::number_of(op, "eps");
}

// The operands of the op; where it clips, the gradient before that, and its factor after all others.
std::span<at::Tensor> AdamCall::run(std::span<const at::Tensor> operands, const StepScalars& scalars) {
  std::copy_n(operands.begin(), given_.size(), given_.begin());
  if (number_in(operands[5]) != 0) return given_;  // non_finite: nothing is updated
  const at::Tensor grad = operands[3].contiguous();
  kernels::Adam whole = whole_;
  whole.clip = clips_ ? number_in(operands[6]) : 1.0F;
  whole.step = number_in(operands[4]);
  for (const ir::UpdateSegment& s : segments_) {
    whole.lr = scalars.lr * s.lr_factor;
    whole.weight_decay = s.weight_decay;
    at::parallel_for(s.begin, s.end, kElementsOfThread, [&](int64_t begin, int64_t end) {
      kernels::Adam part = whole;
      part.param = operands[0].mutable_data_ptr<float>() + begin;
      part.exp_avg = operands[1].mutable_data_ptr<float>() + begin;
      part.exp_avg_sq = operands[2].mutable_data_ptr<float>() + begin;
      part.grad = grad.const_data_ptr<float>() + begin;
      part.count = end - begin;
      kernels::adam(part);
    });
  }
  return given_;
}

}  // namespace sfsdp::exec
