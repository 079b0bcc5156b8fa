// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/cleanup/dead_code.h"

#include <algorithm>
#include <ranges>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/side_table.h"

namespace sfsdp::passes {
namespace {

using ir::Graph, ir::Op, ir::Value;

// Inputs and parameters are the graph's interface, and what is not pure does more than give a result.
bool stays_unread(const Op& op) { return ir::is_root(op) || !ir::is_pure(op); }

using IsRead = ir::ValueTable<uint8_t>;

bool has_reader(const Op& op, const IsRead& read) {
  return std::ranges::any_of(op.results(), [&](const auto& result) { return read[result.get()] != 0; });
}

void note_operands(const Op& op, IsRead& read) {
  for (const Value* operand : op.operands)
    if (operand) read[operand] = 1;
}

IsRead read_by_the_world(const Graph& graph) {
  IsRead read(graph);
  for (const Value* output : graph.outputs) read[output] = 1;
  for (const ir::Carry& carry : graph.carries) read[carry.current] = read[carry.next] = 1;
  return read;
}

// Backwards, so that a chain whose end nobody reads falls in one walk.
std::vector<Op*> find_dead(const Graph& graph) {
  IsRead read = read_by_the_world(graph);
  std::vector<Op*> dead;
  for (const auto& op : graph.ops() | std::views::reverse) {
    if (stays_unread(*op) || has_reader(*op, read))
      note_operands(*op, read);
    else
      dead.push_back(op.get());
  }
  return dead;
}

void check_all_read(const Graph& graph) {
  IsRead read = read_by_the_world(graph);
  for (const auto& op : graph.ops()) note_operands(*op, read);
  for (const auto& op : graph.ops())
    SFSDP_CHECK(stays_unread(*op) || has_reader(*op, read), op->opcode, " is still dead");
}

}  // namespace

bool dead_code(Graph& graph, PassContext& ctx) {
  const std::vector<Op*> dead = find_dead(graph);
  for (const Op* op : dead) {
    ctx.metrics.add("ops_removed", 1);
    if (ir::is_collective(*op)) ctx.metrics.add("collectives_removed", 1);
  }
  if (!dead.empty()) graph.erase(dead);
  check_all_read(graph);
  return !dead.empty();
}

}  // namespace sfsdp::passes
