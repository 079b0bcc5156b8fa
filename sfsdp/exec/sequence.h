// SPDX-License-Identifier: BSD-3-Clause
// Attention of a rank's part of the queries (axis= on sdpa and sdpa_backward), by LibTorch's kernel with a mask: of which positions the
// rank's queries are, and of documents. It holds a number for each query and key; planned/attention_call.h holds none.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "sfsdp/exec/kernels.h"
#include "sfsdp/ir/sequence_order.h"

namespace sfsdp::exec {

// The positions of the queries that the rank has. An axis without a communicator has one rank.
//   op: sdpa or sdpa_backward with axis=
std::vector<ir::PositionRun> own_positions(const ir::Op& op, const Groups& groups);

// The rows of opset.def say what these compute. Results are laid out as the op's types are.
std::vector<at::Tensor> attention_of_part(const KernelContext& c);
std::vector<at::Tensor> attention_backward_of_part(const KernelContext& c);

}  // namespace sfsdp::exec
