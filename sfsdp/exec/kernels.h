// SPDX-License-Identifier: BSD-3-Clause
// The reference kernels of sfsdp's own opcodes (everything that is not "aten.*"), by opcode.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "sfsdp/comm/call.h"
#include "sfsdp/exec/executor.h"

namespace sfsdp::exec {

// The ranks of an op's axes, and the collective that it makes each time it runs, if it is one: described once.
struct GroupCall {
  //   throws: UserError where the op reduces a dtype that cannot be reduced
  GroupCall(const ir::Op& op, std::shared_ptr<comm::Communicator> ranks);

  std::shared_ptr<comm::Communicator> group;
  std::optional<comm::Call> call;  // none of an all_to_all_v, whose bytes memory says
};

// What a kernel may see of its surroundings.
struct KernelContext {
  const ir::Op& op;
  std::span<const at::Tensor> operands;
  const StepScalars& scalars;
  const GroupCall* group = nullptr;  // of attr `axis`, null for an axis of size 1
};

using Kernel = std::vector<at::Tensor> (*)(const KernelContext&);

// nullptr for an opcode that has none here (inputs, accumulate and aten ops are the executor's).
Kernel find_kernel(std::string_view opcode);

// How often the body of a loop (ir/loops.h) runs, by what lies in memory.
//   throws: UserError for fewer than 0 or more trips than its text allows
int64_t trips_of(const ir::Op& loop, const at::Tensor& number);

// A collective of more than one rank from the first operand to `out`, contiguous both; those of an all_reduce may be one.
void collective_into(const ir::Op& op, const GroupCall& group, std::span<const at::Tensor> operands,
                     const at::Tensor& out);

}  // namespace sfsdp::exec
