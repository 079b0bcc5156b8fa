// SPDX-License-Identifier: BSD-3-Clause
// The collective all_to_all_v: rows to the ranks whose groups they belong to, and back (ir/opset.def).
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "sfsdp/comm/communicator.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::exec {

// What a rank sends, and what comes, lies together by rank in memory that it asks LibTorch for. Rows are added in the order of the index, as
// on one rank, whoever sends them.
//   operands: rows, index, ends, as the op has them
//   throws: UserError, on all ranks, where index or ends name no rows; CommError where ranks have others
void exchange_rows(const ir::Op& op, comm::Communicator& group, std::span<const at::Tensor> operands,
                   const at::Tensor& out);

}  // namespace sfsdp::exec
