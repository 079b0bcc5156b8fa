// SPDX-License-Identifier: BSD-3-Clause
// What:   product_kernel=, attention_kernel= and row_kernel= on canonical ops (ir/named_kernels.h).
// Why:    the plan says what computes where that decides last bits: ranks compare it, a run that goes on can be told.
// Rule:   products in float32; those of the shapes of a table, in float64 too, by that (ir/canonical/product_shape.h). Attention in float32 or bfloat16 that sfsdp's kernel computes (kernels/attention.h), without a mask
//         but that of documents. Rows as kernels/of_op.h has them; a cast where it alone reads a product, in one kernel.
// Needs:  nothing; it comes last, as other passes make such ops.
// Leaves: the verifier knows the names.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/ir/canonical/product_shape.h"
#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

// The kernel for each shape. Text: "f32:4x6x8:nt=openblas.gemm;f32:4x8x6:nn=aten.mm".
using ProductTable = std::map<ir::ProductShape, std::string>;
std::string to_string(const ProductTable& table);
ProductTable parse_product_table(std::string_view text);  // throws: UserError for what is none

// Empty: what computes is left to the machine that runs the op.
struct NameKernelsOptions {
  std::string products = {};
  std::string products_by_shape = {};  // a ProductTable, which goes before `products`
  std::string attention = {};
  std::string rows = {};

  bool is_any() const { return !products.empty() || !products_by_shape.empty() || !attention.empty() || !rows.empty(); }
  static const std::vector<Field<NameKernelsOptions>>& fields();
};

// Those that the products of a graph have, each once, in order.
std::vector<ir::ProductShape> product_shapes(const ir::Graph& graph);

bool name_kernels(ir::Graph& graph, const NameKernelsOptions& options, PassContext& ctx);

}  // namespace sfsdp::passes
