// SPDX-License-Identifier: BSD-3-Clause
// Runs a canonical op as the ops of LibTorch that it stands for, so as eager does.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "sfsdp/exec/aten_call.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::exec {

class ComposedCall {
 public:
  // `op` is canonical. Throws UserError when this LibTorch lacks one of the ops.
  explicit ComposedCall(const ir::Op& op);

  // `operands` as the op lists them, undefined for absent ones; one tensor per result, undefined for a token. Each
  // value in between is freed after its last reader.
  std::vector<at::Tensor> run(std::span<const at::Tensor> operands) const;

 private:
  struct Part {
    AtenCall call;
    std::vector<size_t> operands, results, dead_after;  // slots
  };
  static constexpr size_t kAbsent = static_cast<size_t>(-1);

  size_t slots_ = 0;
  std::vector<size_t> operand_slots_;  // kAbsent: not there
  std::vector<size_t> result_slots_;
  std::vector<Part> parts_;
};

}  // namespace sfsdp::exec
