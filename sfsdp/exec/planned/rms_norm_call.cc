// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/planned/rms_norm_call.h"

#include <ATen/Parallel.h>

#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/kernels/rms_norm.h"

namespace sfsdp::exec {
namespace {

kernels::RmsNorm norm_call_of(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd) {
  kernels::RmsNorm call;
  call.rows = rstd.numel();
  if (call.rows > 0)
    call.width = x.numel() / call.rows;
  else if (weight.defined())
    call.width = weight.numel();  // whose gradient is zeros
  call.dtype = capture::dtype_of(x.scalar_type());
  call.x = x.const_data_ptr();
  if (weight.defined()) {
    call.weight_dtype = capture::dtype_of(weight.scalar_type());
    call.weight = weight.const_data_ptr();
  }
  call.rstd = const_cast<float*>(rstd.const_data_ptr<float>());  // backward reads it alone
  return call;
}

}  // namespace

RmsNormCall::RmsNormCall(const ir::Op& op)
    : OwnCall(op), backward_(op.is("rms_norm_backward")), eps_(backward_ ? 0 : ir::number_of(op, "eps")) {}

std::span<at::Tensor> RmsNormCall::run(std::span<const at::Tensor> operands, const StepScalars& /*scalars*/) {
  if (backward_) return backward(operands);
  const std::span<at::Tensor> results = this->results();
  const at::Tensor x = operands[0].contiguous();
  at::Tensor weight;
  if (operands[1].defined()) weight = operands[1].contiguous();
  kernels::RmsNorm call = norm_call_of(x, weight, results[1]);
  call.eps = eps_;
  call.y = results[0].mutable_data_ptr();
  at::parallel_for(0, kernels::norm_blocks(call), 1,
                   [&](int64_t begin, int64_t end) { kernels::rms_norm(call, begin, end); });
  return results;
}

// grad, x, weight or none, rstd, residual or none
std::span<at::Tensor> RmsNormCall::backward(std::span<const at::Tensor> operands) {
  const std::span<at::Tensor> results = this->results();
  const at::Tensor grad = operands[0].contiguous(), x = operands[1].contiguous(), rstd = operands[3].contiguous();
  at::Tensor weight, residual;
  if (operands[2].defined()) weight = operands[2].contiguous();
  if (operands[4].defined()) residual = operands[4].contiguous();
  kernels::RmsNorm call = norm_call_of(x, weight, rstd);
  call.grad = grad.const_data_ptr();
  if (residual.defined()) call.residual = residual.const_data_ptr<float>();
  if (results[0].defined()) call.grad_x = results[0].mutable_data_ptr();
  if (results[1].defined()) {
    parts_.resize(static_cast<size_t>(kernels::norm_blocks(call) * call.width));
    call.grad_weight = parts_.data();
  }
  at::parallel_for(0, kernels::norm_blocks(call), 1,
                   [&](int64_t begin, int64_t end) { kernels::rms_norm_backward(call, begin, end); });
  if (results[1].defined()) kernels::rms_norm_weight(call, results[1].mutable_data_ptr());
  return results;
}

}  // namespace sfsdp::exec
