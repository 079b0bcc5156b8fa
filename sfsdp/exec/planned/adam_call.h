// SPDX-License-Identifier: BSD-3-Clause
// adamw and adam by sfsdp's kernel (kernels/adam.h), with the clipping of the gradient in the same pass.
#pragma once

#include <array>
#include <vector>

#include "sfsdp/exec/op_call.h"
#include "sfsdp/exec/planned/own_call.h"
#include "sfsdp/ir/update_segments.h"
#include "sfsdp/kernels/adam.h"

namespace sfsdp::exec {

class AdamCall final : public OwnCall {
 public:
  //   clip: the `scale` that makes its gradient, which it computes too; null: the gradient is as it is
  AdamCall(const ir::Op& op, const ir::Op* clip, const Groups& groups);
  std::span<at::Tensor> run(std::span<const at::Tensor> operands, const StepScalars& scalars) override;

 private:
  bool can_write(size_t /*index*/, const at::Tensor& /*place*/) const override {
    return false;
  }  // its operands are written

  bool clips_;
  kernels::Adam whole_;  // what all elements have in common
  std::vector<ir::UpdateSegment> segments_;
  std::array<at::Tensor, 3> given_;
};

}  // namespace sfsdp::exec
