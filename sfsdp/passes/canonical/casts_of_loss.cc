// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/canonical/casts_of_loss.h"

#include <algorithm>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/passes/canonical/walk.h"

namespace sfsdp::passes {
namespace {

using ir::Graph, ir::Op, ir::Value;

// The op that shows all of `value`'s producer in another shape; nullptr: it is none, or memory has another order.
Op* reshape_of(Value* value) {
  const Value* below = before_reshape(value);
  const bool plain = value->type().strides.empty() && below->type().strides.empty();
  return below != value && plain ? value->producer() : nullptr;
}

class Swap {
 public:
  explicit Swap(Graph& graph) : graph_(graph) {}

  // A cast and a view of what it makes, or the other way round.
  void swap(Op* first, Op* second) {
    Value* operand = first->operands[0];
    const bool casts_first = first->is("aten._to_copy");
    const ir::Type& last = second->result()->type();
    ir::Type type = casts_first ? last : operand->type();
    type.dtype = casts_first ? operand->type().dtype : last.dtype;
    Op* one = like(second, operand, type, second);
    Op* two = like(first, one->result(), last, second);
    for (const auto& op : graph_.ops())
      if (op->bwd_of == first || op->bwd_of == second) op->bwd_of = op->bwd_of == first ? two : one;
    graph_.replace_uses(second->result(), two->result());
    const std::string middle = first->result()->name(), end = second->result()->name();
    erase_unread({second, first});
    graph_.rename(one->result(), casts_first ? end : middle);  // rows are rows, narrow or wide
    graph_.rename(two->result(), casts_first ? middle : end);
  }

 private:
  Op* like(const Op* op, Value* operand, const ir::Type& type, Op* at) {
    Op* made = graph_.add(op->opcode, {operand}, {{op->result()->name() + ".beside", type}}, at);
    made->attrs = op->attrs;
    made->section = op->section;
    made->module_path = op->module_path;
    made->bwd_of = op->bwd_of;
    return made;
  }

  void erase_unread(const std::vector<Op*>& ops) {
    for (Op* candidate : ops) {
      const Value* value = candidate->result();
      bool read = std::ranges::find(graph_.outputs, value) != graph_.outputs.end();
      for (const auto& op : graph_.ops()) read |= std::ranges::find(op->operands, value) != op->operands.end();
      if (!read) graph_.erase(candidate);
    }
  }

  Graph& graph_;
};

}  // namespace

bool cast_beside_loss(Graph& graph) {
  std::vector<Op*> ops;
  for (const auto& op : graph.ops())
    if (op->is("aten._log_softmax", "aten._log_softmax_backward_data")) ops.push_back(op.get());
  bool changed = false;
  Swap places(graph);
  for (Op* op : ops) {
    if (op->is("aten._log_softmax")) {
      Op* rows = reshape_of(op->operands[0]);
      Op* wide = rows ? made_by(rows->operands[0], "aten._to_copy") : nullptr;
      if (!wide || before_widening(wide->result()) == wide->result()) continue;
      places.swap(wide, rows);
      changed = true;
      continue;
    }
    std::vector<Op*> casts;
    for (const auto& cast : graph.ops())
      if (cast->is("aten._to_copy"))
        if (const Op* shape = reshape_of(cast->operands[0]); shape && shape->operands[0] == op->result())
          casts.push_back(cast.get());
    for (Op* cast : casts) places.swap(cast->operands[0]->producer(), cast);
    changed |= !casts.empty();
  }
  return changed;
}

}  // namespace sfsdp::passes
