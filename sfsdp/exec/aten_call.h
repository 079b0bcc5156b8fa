// SPDX-License-Identifier: BSD-3-Clause
// Runs an "aten.*" op of a graph through LibTorch's dispatcher.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sfsdp/ir/graph.h"

namespace sfsdp::exec {

// LibTorch's op of an opcode, as in "aten.add.Tensor". Throws UserError when this LibTorch has no such op.
c10::OperatorHandle find_op(const std::string& opcode);

// An op with its schema looked up and its constant arguments converted once.
class AtenCall {
 public:
  // Throws UserError when this LibTorch has no such op.
  explicit AtenCall(const ir::Op& op);

  // `operands` as the op lists them, undefined for absent ones; returns one tensor per result. Throws UserError naming
  // op and module path for what the kernel refuses: a target out of range, dtypes that only data brings together.
  std::vector<at::Tensor> run(std::span<const at::Tensor> operands) const;

  // Looks for LibTorch's variant of the op that writes its results to given tensors; whether there is one.
  bool find_out_variant();
  // After find_out_variant() has found it: the same numbers, in `results`: one tensor each, of the sizes that run() gives, which may be an operand only where the op is
  // elementwise. Allocates nothing but lists of tensors.
  void run_into(std::span<const at::Tensor> operands, std::span<const at::Tensor> results);

 private:
  struct Argument {
    enum class Kind { Constant, Tensor, OptionalTensor, TensorList, OptionalTensorList } kind = Kind::Constant;
    c10::IValue constant;
    int first = 0, count = 0;  // operands
  };
  void push(std::span<const at::Tensor> operands, torch::jit::Stack& stack) const;
  void call(const c10::OperatorHandle& handle, torch::jit::Stack& stack, std::span<const at::Tensor> operands) const;

  std::string where_;  // "aten.mm at layers.0", for errors
  c10::OperatorHandle handle_;
  std::optional<c10::OperatorHandle> out_handle_;
  std::vector<Argument> arguments_;
  torch::jit::Stack stack_;  // of run_into: empty, but for its memory
};

}  // namespace sfsdp::exec
