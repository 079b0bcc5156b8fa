// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/fuse/name_kernels.h"

#include <set>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
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

// "": none.
std::string product_kernel(const Op& op, const NameKernelsOptions& options, const ProductTable& table) {
  if (!table.empty())
    if (const auto shape = ir::product_of(op))
      if (const auto found = table.find(*shape); found != table.end()) return found->second;
  return is_product(op) ? options.products : "";
}

}  // namespace

std::string to_string(const ProductTable& table) {
  std::string text;
  for (const auto& [shape, kernel] : table) text += concat(text.empty() ? "" : ";", ir::to_string(shape), '=', kernel);
  return text;
}

ProductTable parse_product_table(std::string_view text) {
  ProductTable table;
  if (text.empty()) return table;
  for (const std::string& entry : split(text, ';')) {
    const size_t equal = entry.find('=');
    const auto shape = ir::parse_product_shape(std::string_view(entry).substr(0, equal));
    if (!shape || equal == std::string::npos || equal + 1 == entry.size())
      throw UserError(concat("name_kernels: products_by_shape has ", json_quoted(entry),
                             "\n  expected a shape and a kernel, as f32:512x2048x768:nt=onednn.matmul"));
    table[*shape] = entry.substr(equal + 1);
  }
  return table;
}

std::vector<ir::ProductShape> product_shapes(const ir::Graph& graph) {
  std::set<ir::ProductShape> shapes;
  for (const auto& op : graph.ops())
    if (const auto shape = ir::product_of(*op)) shapes.insert(*shape);
  return {shapes.begin(), shapes.end()};
}

const std::vector<Field<NameKernelsOptions>>& NameKernelsOptions::fields() {
  static const std::vector<Field<NameKernelsOptions>> kFields = {
      field("products", &NameKernelsOptions::products, {}, "of float32 products, as onednn.matmul; empty: any"),
      field("products_by_shape", &NameKernelsOptions::products_by_shape, {},
            "before products: shapes and their kernels, as "
            "f32:512x2048x768:nt=openblas.gemm;f32:512x768x2048:nt=aten.mm"),
      field("attention", &NameKernelsOptions::attention, {}, "of attention, as sfsdp.flash; empty: any"),
      field("rows", &NameKernelsOptions::rows, {},
            "of losses, norms, gradients and updates, as sfsdp.rows; empty: any")};
  return kFields;
}

bool name_kernels(ir::Graph& graph, const NameKernelsOptions& options, PassContext& ctx) {
  bool changed = false;
  const ir::Index index(graph);
  const ProductTable table = parse_product_table(options.products_by_shape);
  const auto name = [&](Op& op, const char* key, const std::string& kernel) {
    if (kernel.empty() || op.attr_or<std::string>(key, "") == kernel) return;
    op.attrs[key] = kernel;
    ctx.metrics.add("kernels_named", 1);
    changed = true;
  };
  for (const auto& op : graph.ops()) {
    name(*op, "product_kernel", product_kernel(*op, options, table));
    if (kernels::attention_of(*op)) name(*op, "attention_kernel", options.attention);
    if (kernels::computes_rows(*op) && (!op->is("cast") || makes_alone(*op, index)))
      name(*op, "row_kernel", options.rows);
  }
  return changed;
}

}  // namespace sfsdp::passes
