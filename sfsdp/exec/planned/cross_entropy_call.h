// SPDX-License-Identifier: BSD-3-Clause
// cross_entropy and cross_entropy_backward by sfsdp's own kernel (kernels/cross_entropy.h). What is left for backward is a number
// per row, as the plan has it.
#pragma once

#include "sfsdp/exec/planned/own_call.h"
#include "sfsdp/exec/vocabulary.h"

namespace sfsdp::exec {

class CrossEntropyCall final : public OwnCall {
 public:
  //   op:     with row_kernel=sfsdp.rows; cross_entropy_parts and, with axis=, cross_entropy_backward have a part of the classes
  //   groups: of its axis=
  explicit CrossEntropyCall(const ir::Op& op, const Groups& groups = {});

  // throws: IndexError of LibTorch for a target that is no class and not ignored
  std::span<at::Tensor> run(std::span<const at::Tensor> operands, const StepScalars& scalars) override;

 private:
  std::span<at::Tensor> forward(const at::Tensor& logits, const at::Tensor& targets);
  std::span<at::Tensor> parts(const at::Tensor& logits, const at::Tensor& targets);
  std::span<at::Tensor> backward(std::span<const at::Tensor> operands);

  bool backward_, in_parts_;
  OwnClasses own_;
  int64_t reduction_, ignored_;  // 0: a loss per row, 1: their mean, 2: their sum
  std::vector<float> losses_;    // by row
};

}  // namespace sfsdp::exec
