// SPDX-License-Identifier: BSD-3-Clause
// Attention of a rank's part of the queries (axis= on sdpa and sdpa_backward), by LibTorch's kernel with a mask: of which positions the
// rank's queries and keys are, and of documents. It holds a number for each query and key; planned/attention_call.h holds none.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "sfsdp/exec/kernels.h"
#include "sfsdp/ir/sequence_order.h"

namespace sfsdp::exec {

// Where in the sequence the rank's queries stand, and the keys that they are to see, if these are no later.
struct PartPositions {
  std::vector<ir::PositionRun> queries, keys;
  int64_t length = 0;  // of the sequence
};
// An axis without a communicator has one rank.
//   op: sdpa or sdpa_backward with axis=
PartPositions positions_of_part(const ir::Op& op, const Groups& groups);

// The rows of opset.def say what these compute. Results are laid out as the op's types are.
std::vector<at::Tensor> attention_of_part(const KernelContext& c);
std::vector<at::Tensor> attention_backward_of_part(const KernelContext& c);
std::vector<at::Tensor> merge_attention(const KernelContext& c);

}  // namespace sfsdp::exec
