// SPDX-License-Identifier: BSD-3-Clause
// One op that computes, resolved once: an op of LibTorch, a kernel of ours, or a draw of random numbers.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "sfsdp/exec/aten_call.h"
#include "sfsdp/exec/executor.h"
#include "sfsdp/exec/kernels.h"

namespace sfsdp::exec {

class OpCall {
 public:
  //   op: must outlive the call
  // throws: UserError where this LibTorch has no such op
  OpCall(const ir::Op& op, const ir::Graph& graph, const Groups& groups, Rng rng);

  // `operands` as the op lists them, undefined for absent ones; one tensor per result, laid out as the op's types say.
  std::vector<at::Tensor> run(std::span<const at::Tensor> operands, const StepScalars& scalars,
                              DataPosition position) const;

  // Whether run_into can be called from now on.
  bool can_write();
  // The same numbers in `results`, each of its type's sizes and strides; an operand may be one where the op is elementwise.
  void run_into(std::span<const at::Tensor> operands, std::span<const at::Tensor> results) {
    aten_->run_into(operands, results);
  }

  const ir::Op& op() const { return *op_; }
  // Whom it talks to and what it says, null for an axis of size 1 and where it talks to nobody.
  const GroupCall* group() const { return group_ ? &*group_ : nullptr; }

 private:
  at::Tensor draw_by_counter(std::span<const at::Tensor> operands, const StepScalars& scalars,
                             DataPosition position) const;

  const ir::Op* op_;
  std::optional<AtenCall> aten_;
  Kernel kernel_ = nullptr;
  std::optional<GroupCall> group_;
  bool by_counter_ = false;
};

// Passes and plans go by the types: a result laid out otherwise would be read at the wrong places.
// throws: std::logic_error naming op, got and expected
void check_results(std::span<const at::Tensor> results, const ir::Op& op);

}  // namespace sfsdp::exec
