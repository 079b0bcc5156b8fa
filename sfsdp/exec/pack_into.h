// SPDX-License-Identifier: BSD-3-Clause
// A bucket of gradients, put together where it lies: what its products have written there is not copied.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "sfsdp/ir/graph.h"

namespace sfsdp::exec {

// The parts of the result of a `pack`, by operand: views of `bucket`, laid out as the operand's elements are.
std::vector<at::Tensor> parts_of_pack(const ir::Op& op, std::span<const at::Tensor> operands, const at::Tensor& bucket);

// The result of the `pack` in `bucket`: copies the operands that do not lie there, and writes zeros between them.
//   bucket:  of the result's type; operands that do not lie at their place must not overlap it
//   returns: the bytes of those that it has copied
int64_t pack_into(const ir::Op& op, std::span<const at::Tensor> operands, const at::Tensor& bucket);

}  // namespace sfsdp::exec
