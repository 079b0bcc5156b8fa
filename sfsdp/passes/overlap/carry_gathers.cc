// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/overlap/carry_gathers.h"

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/moves.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::passes {
namespace {

using ir::Graph, ir::Op, ir::Section, ir::Value;

struct Gather {
  Op* cast = nullptr;  // of the shard; nullptr: gathered as stored
  Op* start = nullptr;
  Op* wait = nullptr;
  Value* updated = nullptr;  // what the parameter is in the next step
};

int64_t count_carried(const Graph& graph) {
  return std::ranges::count_if(graph.carries,
                               [](const ir::Carry& c) { return ir::is_in_flight(*c.current->producer()); });
}

// Gathers of forward whose shard the optimizer replaces, in the order of their waits.
std::vector<Gather> find_gathers(const Graph& graph) {
  const auto uses = graph.uses();
  std::map<const Value*, Value*> next;
  for (const ir::Carry& c : graph.carries) next[c.current] = c.next;
  std::vector<Gather> gathers;
  for (const auto& op : graph.ops()) {
    if (op->section != Section::Fwd || !ir::is_wait(*op)) continue;
    Gather g;
    g.wait = op.get();
    g.start = op->operands[0]->producer();
    if (!g.start->is("all_gather.start")) continue;
    const Value* shard = g.start->operands[0];
    if (shard->producer()->is("cast") && uses.at(shard).size() == 1) {
      g.cast = shard->producer();
      shard = g.cast->operands[0];
    }
    const auto found = next.find(shard);
    if (found == next.end() || !shard->producer()->is("param")) continue;
    if (found->second->producer()->section != Section::Opt) continue;
    g.updated = found->second;
    gathers.push_back(g);
  }
  return gathers;
}

void carry(Graph& graph, const Gather& g) {
  Op* const first = graph.ops().front().get();
  const Op* param = (g.cast ? g.cast : g.start)->operands[0]->producer();
  const std::string name = param->attr<std::string>("name") + ".in_flight";
  Op* state = graph.add("state", {}, {{name, g.start->result()->type()}}, first);
  state->section = Section::Init;
  state->module_path = g.start->module_path;
  state->attrs["name"] = name;

  Value* shard = g.updated;
  std::vector<Op*> added;
  for (const Op* like : {g.cast, g.start}) {
    if (!like) continue;
    Op* op = graph.add(like->opcode, {shard}, {{like->result()->name() + ".next", like->result()->type()}});
    op->section = Section::Opt;
    op->module_path = like->module_path;
    op->attrs = like->attrs;
    added.push_back(op);
    shard = op->result();
  }
  // The update stands behind the last op it reads: what follows then hides the gather.
  Op* const update = g.updated->producer();
  std::unordered_map<const Op*, size_t> position;
  for (size_t i = 0; i < graph.ops().size(); ++i) position[graph.ops()[i].get()] = i;
  const Op* place = nullptr;
  const auto read = [&](const Op* op) {
    if (!place || position.at(op) > position.at(place)) place = op;
  };
  std::vector<Op*> moved;
  for (const Value* operand : update->operands) {
    if (!operand) continue;
    Op* const from = operand->producer();
    if (!from->is("scale")) {
      read(from);
      continue;
    }
    moved.push_back(from);
    for (const Value* scaled : from->operands) read(scaled->producer());
  }
  moved.push_back(update);
  moved.insert(moved.end(), added.begin(), added.end());
  ir::Moves moves(graph);
  moves.behind(place, moved);
  moves.apply();

  g.wait->operands[0] = state->result();
  graph.carries.push_back({state->result(), shard});
  std::vector<Op*> dead = {g.start};
  if (g.cast) dead.push_back(g.cast);
  graph.erase(dead);
}

}  // namespace

bool carry_gathers(Graph& graph, const CarryGathersOptions& options, PassContext& ctx) {
  const int64_t wanted = options.depth - count_carried(graph);
  if (wanted <= 0) return false;
  std::vector<Gather> gathers = find_gathers(graph);
  gathers.resize(std::min(gathers.size(), static_cast<size_t>(wanted)));
  if (options.micro_batches > 1) {
    ctx.metrics.add("left_for_micro_batches", static_cast<int64_t>(gathers.size()));
    return false;
  }
  // The last first, as each goes behind the same op at the earliest: the first unit's gather starts first.
  for (size_t i = gathers.size(); i-- > 0;) {
    ctx.metrics.add("bytes_in_flight", gathers[i].start->result()->type().bytes());
    carry(graph, gathers[i]);
  }
  ctx.metrics.add("carried", static_cast<int64_t>(gathers.size()));
  for (const ir::Carry& c : graph.carries)
    if (ir::is_in_flight(*c.current->producer()))
      SFSDP_CHECK(ir::is_start(*c.next->producer()) && c.next->producer()->section == Section::Opt, '%',
                  c.current->name(), " is carried in flight, but %", c.next->name(),
                  " is not started by the optimizer");
  return !gathers.empty();
}

}  // namespace sfsdp::passes
