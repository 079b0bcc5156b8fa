// SPDX-License-Identifier: BSD-3-Clause
// What:   product_kernel=, attention_kernel= and row_kernel= on canonical ops (ir/named_kernels.h).
// Why:    the plan says what computes where that decides last bits: ranks compare it, a run that goes on can be told.
// Rule:   products in float32. Attention in float32 or bfloat16 that sfsdp's kernel computes (kernels/attention.h), without a mask
//         but that of documents. Rows as kernels/of_op.h has them; a cast where it alone reads a product, in one kernel.
// Needs:  nothing; it comes last, as other passes make such ops.
// Leaves: the verifier knows the names.
#pragma once

#include <string>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

// Empty: what computes is left to the machine that runs the op.
struct NameKernelsOptions {
  std::string products = {};
  std::string attention = {};
  std::string rows = {};

  bool is_any() const { return !products.empty() || !attention.empty() || !rows.empty(); }
  static const std::vector<Field<NameKernelsOptions>>& fields();
};

bool name_kernels(ir::Graph& graph, const NameKernelsOptions& options, PassContext& ctx);

}  // namespace sfsdp::passes
