// SPDX-License-Identifier: BSD-3-Clause
// Attention by sfsdp's own kernel (kernels/attention.h).
#pragma once

#include <vector>

#include "sfsdp/exec/planned/own_call.h"
#include "sfsdp/kernels/attention.h"

namespace sfsdp::exec {

class AttentionCall final : public OwnCall {
 public:
  //   op:     sdpa or sdpa_backward with attention_kernel=sfsdp.flash
  //   groups: with that of the op's axis=, if it has one
  AttentionCall(const ir::Op& op, const Groups& groups);

  std::span<at::Tensor> run(std::span<const at::Tensor> operands, const StepScalars& scalars) override;

 private:
  bool can_write(size_t index, const at::Tensor& place) const override;

  bool backward_;
  kernels::AttentionShape shape_;
  std::vector<ir::PositionRun> positions_;      // of the rank's queries, with axis=
  std::vector<ir::PositionRun> key_positions_;  // of the keys, with shift=
};

}  // namespace sfsdp::exec
