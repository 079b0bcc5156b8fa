// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/planned/adam_call.h"

#include <ATen/Parallel.h>

#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/update_segments.h"
#include "sfsdp/kernels/adam.h"

namespace sfsdp::exec {
namespace {

constexpr int64_t kElementsOfThread = int64_t{1} << 15;

}  // namespace

AdamCall::AdamCall(const ir::Op& op, const ir::Op* clip, const Groups& groups) : OwnCall(op), clips_(clip), rank_(0) {
  if (const auto axes = ir::axes_of(op))
    if (const auto group = groups.find(axis_key(*axes)); group != groups.end()) rank_ = group->second->rank();
}

// The operands of the op; where it clips, the gradient before that, and its factor after all others.
std::vector<at::Tensor> AdamCall::run(std::span<const at::Tensor> operands, const StepScalars& scalars) {
  const std::vector<at::Tensor> results = {operands[0], operands[1], operands[2]};
  if (operands[5].item<float>() != 0) return results;  // non_finite: nothing is updated
  const at::Tensor grad = operands[3].contiguous();
  const int64_t numel = operands[0].numel();
  kernels::Adam whole;
  whole.clip = clips_ ? operands[6].item<float>() : 1.0F;
  whole.decoupled = op().is("adamw");
  whole.beta1 = ir::number_of(op(), "beta1");
  whole.beta2 = ir::number_of(op(), "beta2");
  whole.eps = ir::number_of(op(), "eps");
  whole.step = operands[4].item<float>();
  for (const ir::UpdateSegment& s : ir::update_segments(op(), rank_ * numel, numel)) {
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
  return results;
}

}  // namespace sfsdp::exec
