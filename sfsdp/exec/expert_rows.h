// SPDX-License-Identifier: BSD-3-Clause
// Ops over the range of rows that a rank's experts have (own_rows, spread_rows, own_ends in ir/opset.def).
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "sfsdp/exec/kernels.h"

namespace sfsdp::exec {

//   throws: UserError where the offsets in memory are no ends of groups that lie side by side within the rows
std::vector<at::Tensor> own_rows(const KernelContext& c);
std::vector<at::Tensor> spread_rows(const KernelContext& c);
std::vector<at::Tensor> own_ends(const KernelContext& c);

}  // namespace sfsdp::exec
