// SPDX-License-Identifier: BSD-3-Clause
// rms_norm and rms_norm_backward by sfsdp's kernel of rows (kernels/rms_norm.h).
#pragma once

#include <vector>

#include "sfsdp/exec/planned/own_call.h"

namespace sfsdp::exec {

class RmsNormCall final : public OwnCall {
 public:
  explicit RmsNormCall(const ir::Op& op);
  std::span<at::Tensor> run(std::span<const at::Tensor> operands, const StepScalars& scalars) override;
  bool reads_before_it_writes(size_t index) const override { return index == 0; }

 private:
  std::span<at::Tensor> backward(std::span<const at::Tensor> operands);

  bool backward_;
  double eps_;                // of forward
  std::vector<float> parts_;  // of the weight's gradient, by block of rows
};

}  // namespace sfsdp::exec
