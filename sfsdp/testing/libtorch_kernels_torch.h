// SPDX-License-Identifier: BSD-3-Clause
// LibTorch's kernels on the interpreter's arrays: of the ops that testing/interp has none for.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/testing/interp/array.h"

namespace sfsdp::testing {

ir::interp::Array to_array(const at::Tensor& tensor, ir::DType dtype);

// As interp::OtherKernels has it.  throws: UserError naming an op that LibTorch has not, or does not take
std::vector<ir::interp::Array> run_in_libtorch(const ir::Op& op, std::span<const ir::interp::Array* const> operands);

}  // namespace sfsdp::testing
