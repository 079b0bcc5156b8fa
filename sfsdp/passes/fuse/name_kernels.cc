// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/fuse/name_kernels.h"

#include "sfsdp/ir/canonical/decompose.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/kernels/attention.h"

namespace sfsdp::passes {
namespace {

using ir::Op;

bool is_product(const Op& op) {
  const ir::OpRow* row = op.opcode.row();
  return row && row->cost == ir::CostClass::Product && ir::is_canonical(op.opcode) &&
         op.result()->type().dtype == ir::DType::f32;
}

bool is_attention(const Op& op) {
  if (!op.is("sdpa", "sdpa_backward")) return false;
  const size_t query = op.is("sdpa") ? 0 : 1, mask = op.is("sdpa") ? 3 : 6;
  const ir::Type& type = op.operands[query]->type();
  const std::vector<int64_t> q = type.shape(), k = op.operands[query + 1]->type().shape();
  const double* scale = op.find_attr<double>("scale");
  const bool masked = op.operands.size() > mask && op.operands[mask] && !op.attr_or("documents", false);
  const bool drops = op.attr_or("dropout_p", 0.0) != 0;
  return !masked && !drops &&
         kernels::can_attend({.batch = q[0],
                              .heads = q[1],
                              .groups = k[1],
                              .queries = q[2],
                              .keys = k[2],
                              .width = q[3],
                              .causal = op.attr_or("is_causal", false),
                              .scale = scale ? static_cast<float>(*scale) : 1.0F,
                              .dtype = type.dtype});
}

bool is_loss(const Op& op) {
  if (!op.is("cross_entropy", "cross_entropy_backward")) return false;
  const ir::DType dtype = op.operands[op.is("cross_entropy") ? 0 : 1]->type().dtype;
  return dtype == ir::DType::f32 || (dtype == ir::DType::bf16 && !op.attr_or("in_dtype", false));
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
    if (is_attention(*op)) name(*op, "attention_kernel", options.attention);
    if (is_loss(*op)) name(*op, "row_kernel", options.rows);
  }
  return changed;
}

}  // namespace sfsdp::passes
