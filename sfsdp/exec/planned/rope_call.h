// SPDX-License-Identifier: BSD-3-Clause
// rope and rope_inverse by sfsdp's kernel of rows (kernels/rope.h).
#pragma once

#include "sfsdp/exec/planned/own_call.h"

namespace sfsdp::exec {

class RopeCall final : public OwnCall {
 public:
  explicit RopeCall(const ir::Op& op);
  std::span<at::Tensor> run(std::span<const at::Tensor> operands, const StepScalars& scalars) override;
  bool reads_before_it_writes(size_t /*index*/) const override { return true; }

 private:
  bool halves_, inverse_;

  bool can_write(size_t index, const at::Tensor& place) const override;
};

}  // namespace sfsdp::exec
