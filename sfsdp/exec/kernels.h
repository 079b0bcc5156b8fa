// SPDX-License-Identifier: BSD-3-Clause
// The reference kernels of sfsdp's own opcodes (everything that is not "aten.*"), by opcode.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "sfsdp/exec/executor.h"

namespace sfsdp::exec {

// What a kernel may see of its surroundings.
struct KernelContext {
  const ir::Op& op;
  std::span<const at::Tensor> operands;
  const StepScalars& scalars;
  comm::Communicator* group = nullptr;  // of attr `axis`, null for an axis of size 1
};

using Kernel = std::vector<at::Tensor> (*)(const KernelContext&);

// nullptr for an opcode that has none here (inputs, accumulate and aten ops are the executor's).
Kernel find_kernel(std::string_view opcode);

// A collective of more than one rank from `in` to `out`, contiguous both; those of an all_reduce may be one.
void collective_into(const ir::Op& op, comm::Communicator& group, const at::Tensor& in, const at::Tensor& out);

}  // namespace sfsdp::exec
