// SPDX-License-Identifier: BSD-3-Clause
// Ops over the range of rows that a rank's experts have (own_rows, spread_rows, own_ends in ir/opset.def).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "sfsdp/exec/kernels.h"

namespace sfsdp::exec {

// Where the rows of each rank begin, of groups that ends say and of which the ranks have equal shares, in their order; last where the last
// one's end.
//   ends: contiguous
//   rows: how many there are; -1: not known here
std::vector<int64_t> row_bounds(const ir::Op& op, const at::Tensor& ends, int64_t rows, int64_t ranks);

// The number of a round, operand `index` of an op; 0 where there is none.
int64_t round_of(std::span<const at::Tensor> operands, size_t index);

//   throws: UserError where the offsets in memory are no ends of groups that lie side by side within the rows
std::vector<at::Tensor> own_rows(const KernelContext& c);
std::vector<at::Tensor> spread_rows(const KernelContext& c);
std::vector<at::Tensor> own_ends(const KernelContext& c);
std::vector<at::Tensor> further_rounds(const KernelContext& c);

}  // namespace sfsdp::exec
