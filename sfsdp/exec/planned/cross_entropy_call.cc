// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/planned/cross_entropy_call.h"

#include <ATen/Parallel.h>

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

CrossEntropyCall::CrossEntropyCall(const ir::Op& op, const Groups& groups)
    : OwnCall(op),
      backward_(op.is("cross_entropy_backward")),
      in_parts_(op.has_attr("axis")),
      own_(own_classes(op, groups, op.operands[backward_ ? 1 : 0]->type().shape()[1])),
      reduction_(op.attr_or("reduction", int64_t{1})),
      ignored_(op.attr_or("ignore_index", int64_t{-100})) {}

std::span<at::Tensor> CrossEntropyCall::run(std::span<const at::Tensor> operands, const StepScalars& /*scalars*/) {
  if (backward_) return backward(operands);
  const at::Tensor logits = operands[0].contiguous(), targets = operands[1].contiguous();
  return in_parts_ ? parts(logits, targets) : forward(logits, targets);
}

std::span<at::Tensor> CrossEntropyCall::forward(const at::Tensor& logits, const at::Tensor& targets) {
  const std::span<at::Tensor> results = this->results();
  const int64_t rows = logits.size(0);
  losses_.resize(static_cast<size_t>(rows));
  kernels::CrossEntropy call = call_of(logits, targets, ignored_);
  call.log_sums = results[2].mutable_data_ptr<float>();
  call.losses = reduction_ == 0 ? results[0].mutable_data_ptr<float>() : losses_.data();
  const int64_t count = check_targets({call.targets, static_cast<size_t>(rows)}, ignored_, own_);
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

std::span<at::Tensor> CrossEntropyCall::parts(const at::Tensor& logits, const at::Tensor& targets) {
  const std::span<at::Tensor> results = this->results();
  kernels::CrossEntropy call = call_of(logits, targets, ignored_);
  call.first = own_.first;
  call.counted = own_.counted();
  call.rows = logits.size(0);
  call.parts = results[0].mutable_data_ptr<float>();
  check_targets({call.targets, static_cast<size_t>(call.rows)}, ignored_, own_);
  at::parallel_for(0, call.rows, kRowsOfThread,
                   [&](int64_t begin, int64_t end) { kernels::cross_entropy_parts(call, begin, end); });
  return results;
}

// grad of the loss, logits, targets, count, lse
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
  const at::Tensor log_sums = in_parts_ ? operands[4].contiguous() : at::Tensor();
  if (in_parts_) {
    call.first = own_.first;
    call.counted = own_.counted();
    call.given_sums = log_sums.const_data_ptr<float>();
  }
  call.grad = results[0].mutable_data_ptr();
  at::parallel_for(0, logits.size(0), kRowsOfThread,
                   [&](int64_t begin, int64_t end) { kernels::cross_entropy_backward(call, begin, end); });
  return results;
}

}  // namespace sfsdp::exec
