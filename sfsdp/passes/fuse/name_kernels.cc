// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/fuse/name_kernels.h"

#include "sfsdp/ir/canonical/decompose.h"
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

}  // namespace

const std::vector<Field<NameKernelsOptions>>& NameKernelsOptions::fields() {
  static const std::vector<Field<NameKernelsOptions>> kFields = {
      field("products", &NameKernelsOptions::products, {}, "of float32 products, as onednn.matmul; empty: any"),
      field("attention", &NameKernelsOptions::attention, {}, "of attention, as sfsdp.flash; empty: any"),
      field("rows", &NameKernelsOptions::rows, {}, "of cross entropy, as sfsdp.rows; empty: any")};
  return kFields;
}

bool name_kernels(ir::Graph& graph, const NameKernelsOptions& options, PassContext& ctx) {
  bool changed = false;
  const auto name = [&](Op& op, const char* key, const std::string& kernel) {
    if (kernel.empty() || op.attr_or<std::string>(key, "") == kernel) return;
    op.attrs[key] = kernel;
    ctx.metrics.add("kernels_named", 1);
    changed = true;
  };
  for (const auto& op : graph.ops()) {
    if (is_product(*op)) name(*op, "product_kernel", options.products);
    if (kernels::attention_of(*op)) name(*op, "attention_kernel", options.attention);
    if (kernels::computes_rows(*op)) name(*op, "row_kernel", options.rows);
  }
  return changed;
}

}  // namespace sfsdp::passes
