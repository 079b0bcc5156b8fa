// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/fuse/name_kernels.h"

#include "sfsdp/ir/canonical/decompose.h"
#include "sfsdp/ir/index.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/kernels/of_op.h"

namespace sfsdp::passes {
namespace {

using ir::Op;

bool is_product(const Op& op) {
  const ir::OpRow* row = op.opcode.row();
  return row && row->cost == ir::CostClass::Product && ir::is_canonical(op.opcode) &&
         op.result()->type().dtype == ir::DType::f32;
}

// Whether the cast is the only one that reads what it casts, in the kernel that makes that.
bool makes_alone(const Op& cast, const ir::Index& index) {
  const auto* kernel = cast.find_attr<int64_t>("kernel");
  const auto* of_maker = kernels::computed_with(cast)->find_attr<int64_t>("kernel");
  return kernel && of_maker && *kernel == *of_maker && index.only_reader(cast.operands[0]) == &cast;
}

}  // namespace

const std::vector<Field<NameKernelsOptions>>& NameKernelsOptions::fields() {
  static const std::vector<Field<NameKernelsOptions>> kFields = {
      field("products", &NameKernelsOptions::products, {}, "of float32 products, as onednn.matmul; empty: any"),
      field("attention", &NameKernelsOptions::attention, {}, "of attention, as sfsdp.flash; empty: any"),
      field("rows", &NameKernelsOptions::rows, {},
            "of losses, norms, gradients and updates, as sfsdp.rows; empty: any")};
  return kFields;
}

bool name_kernels(ir::Graph& graph, const NameKernelsOptions& options, PassContext& ctx) {
  bool changed = false;
  const ir::Index index(graph);
  const auto name = [&](Op& op, const char* key, const std::string& kernel) {
    if (kernel.empty() || op.attr_or<std::string>(key, "") == kernel) return;
    op.attrs[key] = kernel;
    ctx.metrics.add("kernels_named", 1);
    changed = true;
  };
  for (const auto& op : graph.ops()) {
    if (is_product(*op)) name(*op, "product_kernel", options.products);
    if (kernels::attention_of(*op)) name(*op, "attention_kernel", options.attention);
    if (kernels::computes_rows(*op) && (!op->is("cast") || makes_alone(*op, index)))
      name(*op, "row_kernel", options.rows);
  }
  return changed;
}

}  // namespace sfsdp::passes
