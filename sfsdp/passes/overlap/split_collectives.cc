// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/overlap/split_collectives.h"

#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/builder.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::passes {
namespace {

using ir::Graph, ir::Op, ir::Value;

bool is_blocking(const Op& op) { return ir::is_repeated(op.section) && ir::is_collective(op) && !ir::is_start(op); }

}  // namespace

void split_blocking(Graph& graph, const std::vector<Op*>& blocking) {
  ir::Builder build(graph);
  for (Op* op : blocking) {
    Value* const result = op->result();
    ir::Type in_flight = result->type();
    in_flight.kind = ir::Type::Kind::Async;
    const auto place = build.before(op);
    Op* start =
        place.op(op->opcode.str() + ".start", op->operands, {{result->name() + ".start", in_flight}}, op->attrs);
    Op* wait = place.op("wait", {start->result()}, {{"", result->type()}});
    if (ir::is_once(*op)) wait->attrs["once"] = true;
    build.take_place(result, wait->result());
    build.erase(op);
  }
  build.apply();
}

bool split_collectives(Graph& graph, PassContext& ctx) {
  std::vector<Op*> blocking;
  for (const auto& op : graph.ops())
    if (is_blocking(*op)) blocking.push_back(op.get());
  split_blocking(graph, blocking);
  ctx.metrics.add("split", static_cast<int64_t>(blocking.size()));
  for (const auto& op : graph.ops()) SFSDP_CHECK(!is_blocking(*op), op->opcode, " %", op->result()->name(), " is left");
  return !blocking.empty();
}

}  // namespace sfsdp::passes
