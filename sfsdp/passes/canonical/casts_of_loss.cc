// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/canonical/casts_of_loss.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/passes/canonical/walk.h"

namespace sfsdp::passes {
namespace {

using ir::Graph, ir::Op, ir::Value;

// The op that made `value`, if all it does is to show what it reads in another shape.
Op* reshape_of(Value* value) {
  const Value* below = before_reshape(value);
  const bool plain = value->type().strides.empty() && below->type().strides.empty();
  return below != value && plain ? value->producer() : nullptr;
}

Op* add_like(Graph& graph, const Op& op, Value* operand, const ir::Type& type, Op* before) {
  Op* made = graph.add(op.opcode, {operand}, {{op.result()->name() + ".beside", type}}, before);
  made->attrs = op.attrs;
  made->section = op.section;
  made->module_path = op.module_path;
  made->bwd_of = op.bwd_of;
  return made;
}

void erase_unread(Graph& graph, Op* op) {
  const auto is_it = [&](const Value* value) { return value == op->result(); };
  const bool read = std::ranges::any_of(graph.outputs, is_it) || std::ranges::any_of(graph.ops(), [&](const auto& o) {
                      return std::ranges::any_of(o->operands, is_it);
                    });
  if (!read) graph.erase(op);
}

// A cast and a view of what it makes, or the other way round.
void swap(Graph& graph, Op* first, Op* second) {
  Value* operand = first->operands[0];
  const bool casts_first = first->is("aten._to_copy");
  const ir::Type& last = second->result()->type();
  ir::Type type = casts_first ? last : operand->type();
  type.dtype = casts_first ? operand->type().dtype : last.dtype;
  Op* one = add_like(graph, *second, operand, type, second);
  Op* two = add_like(graph, *first, one->result(), last, second);
  for (const auto& op : graph.ops())
    if (op->bwd_of == first || op->bwd_of == second) op->bwd_of = op->bwd_of == first ? two : one;
  graph.replace_uses(second->result(), two->result());
  const std::string middle = first->result()->name(), end = second->result()->name();
  erase_unread(graph, second);
  erase_unread(graph, first);
  graph.rename(one->result(), casts_first ? end : middle);  // rows are rows, narrow or wide
  graph.rename(two->result(), casts_first ? middle : end);
}

}  // namespace

bool cast_beside_loss(Graph& graph) {
  std::vector<std::pair<Op*, Op*>> found;
  const auto find = [&](Op* first, Op* second) {
    if (std::ranges::find(found, std::pair(first, second)) == found.end()) found.emplace_back(first, second);
  };
  for (const auto& op : graph.ops()) {
    if (!op->is("aten._log_softmax", "aten._to_copy")) continue;
    Op* shape = reshape_of(op->operands[0]);
    if (!shape) continue;
    if (op->is("aten._to_copy")) {
      if (made_by(shape->operands[0], "aten._log_softmax_backward_data")) find(shape, op.get());
    } else if (before_widening(shape->operands[0]) != shape->operands[0]) {
      find(shape->operands[0]->producer(), shape);
    }
  }
  for (const auto& [first, second] : found) swap(graph, first, second);
  return !found.empty();
}

}  // namespace sfsdp::passes
