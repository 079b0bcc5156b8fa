// SPDX-License-Identifier: BSD-3-Clause
// What LibTorch asks of a product's operands in its kernels alone, and so not of meta tensors.
#pragma once

#include "sfsdp/ir/graph.h"

namespace sfsdp::capture {

// Nothing for an op that is no product.
//   throws: UserError naming op and module path where operands have several dtypes, with the types and what to do
void check_product(const ir::Op& op);

}  // namespace sfsdp::capture
