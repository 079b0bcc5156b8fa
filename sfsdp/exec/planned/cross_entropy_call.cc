// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/planned/cross_entropy_call.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/kernels/cross_entropy.h"

namespace sfsdp::exec {
namespace {

constexpr int64_t kRowsOfThread = 8;

kernels::CrossEntropy call_of(const at::Tensor& logits, const at::Tensor& targets, int64_t ignored) {
  kernels::CrossEntropy call;
  call.classes = logits.size(1);
  call.dtype = capture::dtype_of(logits.scalar_type());
  call.logits = logits.const_data_ptr();
  call.targets = targets.const_data_ptr<int64_t>();
  call.ignored = ignored;
  return call;
}

}  // namespace

CrossEntropyCall::CrossEntropyCall(const ir::Op& op)
    : OwnCall(op),
      backward_(op.is("cross_entropy_backward")),
      reduction_(op.attr_or("reduction", int64_t{1})),
      ignored_(op.attr_or("ignore_index", int64_t{-100})) {}

std::span<at::Tensor> CrossEntropyCall::run(std::span<const at::Tensor> operands, const StepScalars& /*scalars*/) {
  return backward_ ? backward(operands) : forward(operands[0].contiguous(), operands[1].contiguous());
}

std::span<at::Tensor> CrossEntropyCall::forward(const at::Tensor& logits, const at::Tensor& targets) {
  const std::span<at::Tensor> results = this->results();
  const int64_t rows = logits.size(0);
  losses_.resize(static_cast<size_t>(rows));
  kernels::CrossEntropy call = call_of(logits, targets, ignored_);
  call.log_sums = results[2].mutable_data_ptr<float>();
  call.losses = reduction_ == 0 ? results[0].mutable_data_ptr<float>() : losses_.data();
  int64_t count = 0;
  for (int64_t r = 0; r < rows; ++r) {
    if (call.targets[r] == ignored_) continue;
    TORCH_CHECK_INDEX(call.targets[r] >= 0 && call.targets[r] < call.classes, "Target ", call.targets[r],
                      " is out of bounds.");
    ++count;
  }
  at::parallel_for(0, rows, kRowsOfThread,
                   [&](int64_t begin, int64_t end) { kernels::cross_entropy(call, begin, end); });
  // As nll_loss leaves it where no loss is reduced: 0.
  *results[1].mutable_data_ptr<float>() = reduction_ == 0 ? 0.0F : static_cast<float>(count);
  if (reduction_ == 0) return results;
  double sum = 0;
  for (const float loss : losses_) sum += loss;
  *results[0].mutable_data_ptr<float>() = static_cast<float>(reduction_ == 1 ? sum / static_cast<double>(count) : sum);
  return results;
}

// grad of the loss, logits, targets, count
std::span<at::Tensor> CrossEntropyCall::backward(std::span<const at::Tensor> operands) {
  const std::span<at::Tensor> results = this->results();
  const at::Tensor grad = operands[0].contiguous(), logits = operands[1].contiguous(),
                   targets = operands[2].contiguous();
  float factor = 0;
  kernels::CrossEntropy call = call_of(logits, targets, ignored_);
  call.factor_by_row = reduction_ == 0;
  call.factors = grad.const_data_ptr<float>();
  if (reduction_ == 1) {
    factor = *grad.const_data_ptr<float>() / number_in(operands[3]);
    call.factors = &factor;
  }
  call.grad = results[0].mutable_data_ptr();
  at::parallel_for(0, logits.size(0), kRowsOfThread,
                   [&](int64_t begin, int64_t end) { kernels::cross_entropy_backward(call, begin, end); });
  return results;
}

}  // namespace sfsdp::exec
