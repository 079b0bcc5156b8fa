// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/cleanup/fold_views.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/canonical/term.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/view_geometry.h"

namespace sfsdp::passes {
namespace {

using ir::Graph, ir::Op, ir::Type, ir::Value;
using Order = std::vector<int64_t>;

// Where the result's elements begin in the operand, in the same order; nullopt for any other op, and where memory is not contiguous on both
// sides, as strides then decide which shapes fit.
std::optional<int64_t> offset_of(const Op& op) {
  if (!ir::has_flag(op, ir::kReshape)) return std::nullopt;
  const Type &from = op.operands[0]->type(), &to = op.result()->type();
  if (!from.strides.empty() || !to.strides.empty() || from.dtype != to.dtype) return std::nullopt;
  return op.attr_or<int64_t>("offset", 0);
}

// Dimension i of the result is dimension order[i] of the operand; nullopt for other ops.
std::optional<Order> order_of(const Op& op) {
  if (!ir::has_flag(op, ir::kPermute)) return std::nullopt;
  const auto rank = static_cast<int64_t>(op.operands[0]->type().dims.size());
  const auto wrapped = [&](int64_t dim) { return static_cast<size_t>(dim < 0 ? dim + rank : dim); };
  Order order(static_cast<size_t>(rank));
  std::iota(order.begin(), order.end(), 0);
  if (op.is("aten.permute")) {
    const auto& dims = op.attr<Order>("dims");
    for (size_t i = 0; i < dims.size(); ++i) order[i] = static_cast<int64_t>(wrapped(dims[i]));
  } else if (op.is("aten.transpose.int")) {
    if (rank > 0) std::swap(order[wrapped(op.attr<int64_t>("dim0"))], order[wrapped(op.attr<int64_t>("dim1"))]);
  } else {
    std::ranges::reverse(order);  // of at most two
  }
  return order;
}

bool changes_nothing(const Op& op) {
  if (const auto order = order_of(op)) return std::ranges::is_sorted(*order);
  const auto offset = offset_of(op);
  return offset && *offset == 0 && op.operands[0]->type() == op.result()->type();
}

// Reads through the view below, if both are of one kind. Returns whether it did.
bool read_through(Op& op) {
  const Op& below = *op.operands[0]->producer();
  if (const auto order = order_of(op), under = order_of(below); order && under) {
    Order both;
    for (const int64_t dim : *order) both.push_back((*under)[static_cast<size_t>(dim)]);
    op.opcode = "aten.permute";
    op.attrs = {{"dims", both}};
    op.operands[0] = below.operands[0];
    return true;
  }
  const auto offset = offset_of(op), under = offset_of(below);
  if (!offset || !under) return false;
  Value* const base = below.operands[0];
  if (base->type().numel() == op.result()->type().numel() && *offset + *under == 0) {
    op.opcode = "aten.view";
    op.attrs = {{"size", op.result()->type().shape()}};
  } else {
    op.opcode = "view";
    op.attrs = {{"offset", *offset + *under}};
  }
  op.operands[0] = base;
  return true;
}

// Sees or writes all elements of its operand, in their order: nothing but another shape.
bool is_whole(const Op& op) {
  const auto* size = op.find_attr<Order>("size");
  const auto* stride = op.find_attr<Order>("stride");
  const Type& whole = op.operands[0]->type();
  if (!size || !stride || op.attr_or<int64_t>("storage_offset", 0) != 0 || !whole.strides.empty()) return false;
  const Type seen = Type::tensor(whole.dtype, *size);
  return seen.numel() == whole.numel() && *stride == ir::strides_of(seen) &&
         ir::storage_of(op.operands[0])->type().numel() == whole.numel();
}

// What eager writes in place through a view of all of a tensor, such as a bias that is added to a product, becomes the
// value that is written. Returns whether `op` was one of these.
bool write_as_view(Op& op) {
  if (!op.is("aten.as_strided", "aten.as_strided_scatter") || !is_whole(op)) return false;
  const bool writes = op.is("aten.as_strided_scatter");
  if (writes && (!op.operands[1]->type().strides.empty() || !op.result()->type().strides.empty() ||
                 op.operands[1]->type().dtype != op.result()->type().dtype))
    return false;
  op.opcode = "aten.view";
  op.operands = {op.operands[writes ? 1 : 0]};
  op.attrs = {{"size", op.result()->type().shape()}};
  return true;
}

void check_folded(const Graph& graph) {
  for (const auto& op : graph.ops()) {
    SFSDP_CHECK(!changes_nothing(*op), name_of(*op), " still changes nothing");
    if (!order_of(*op) && !offset_of(*op)) continue;
    const Op& below = *op->operands[0]->producer();
    SFSDP_CHECK(!(order_of(*op) && order_of(below)) && !(offset_of(*op) && offset_of(below)), name_of(*op),
                " still reads ", below.opcode);
  }
}

}  // namespace

bool fold_views(Graph& graph, PassContext& ctx) {
  std::map<Value*, Value*> replaced;
  std::vector<Op*> erased;
  bool changed = false;
  for (const auto& op : graph.ops()) {  // in order: what an op reads is folded already
    for (Value*& operand : op->operands)
      if (const auto found = replaced.find(operand); found != replaced.end()) operand = found->second;
    if (write_as_view(*op)) {
      ctx.metrics.add("writes_as_views", 1);
      changed = true;
    }
    if (!order_of(*op) && !offset_of(*op)) continue;
    if (read_through(*op)) {
      ctx.metrics.add("views_composed", 1);
      changed = true;
    }
    if (!changes_nothing(*op)) continue;
    ctx.metrics.add("views_removed", 1);
    replaced.emplace(op->result(), op->operands[0]);
    erased.push_back(op.get());
  }
  if (!erased.empty()) {
    graph.replace_uses(replaced);  // outputs and carries
    graph.erase(erased);
  }
  check_folded(graph);
  return changed || !erased.empty();
}

}  // namespace sfsdp::passes
