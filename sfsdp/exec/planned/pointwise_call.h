// SPDX-License-Identifier: BSD-3-Clause
// Ops on elements that follow each other in a kernel, by the block machine (kernels/pointwise.h).
#pragma once

#include <span>
#include <vector>

#include "sfsdp/exec/planned/own_call.h"
#include "sfsdp/kernels/pointwise.h"

namespace sfsdp::exec {

// How many ops from the first one on are computed as one: ops on elements that the plan names sfsdp.rows, of as many elements each, as far
// as there are registers.
size_t count_pointwise(std::span<const ir::Op* const> ops);
// What they read of others, each once.
std::vector<const ir::Value*> operands_of_pointwise(std::span<const ir::Op* const> ops);

class PointwiseCall final : public OwnCall {
 public:
  //   ops: of count_pointwise(); they must outlive the call
  //   results: of theirs, that others read
  // The call's operands are operands_of_pointwise(ops).
  PointwiseCall(std::span<const ir::Op* const> ops, std::vector<const ir::Value*> results);

  // A block is read whole before it is written.
  bool reads_before_it_writes(size_t /*index*/) const override { return true; }
  std::span<at::Tensor> run(std::span<const at::Tensor> operands, const StepScalars& scalars) override;

 private:
  kernels::Pointwise call_;
  int64_t numel_;
  std::vector<at::Tensor> inputs_;  // what it has made contiguous, while it runs
};

}  // namespace sfsdp::exec
