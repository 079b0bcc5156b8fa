// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/overlap/gather_once.h"

#include <algorithm>
#include <set>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/index.h"
#include "sfsdp/ir/moves.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/passes/analysis/own_start.h"

namespace sfsdp::passes {
namespace {

using ir::Graph, ir::Op, ir::Section, ir::Value;

// The start of a gather of params, with what makes what it sends.
struct Gather {
  std::vector<Op*> start;  // in order, the collective last
  std::set<const Op*> params;
  const Op* wait = nullptr;
};

bool add_params(const Value* value, std::set<const Op*>& params) {
  const Op* op = value->producer();
  if (op->is("param")) {
    params.insert(op);
    return true;
  }
  return !ir::is_root(*op) && std::ranges::all_of(op->operands, [&](const Value* v) { return add_params(v, params); });
}

std::vector<Gather> gathers_to_share(const Graph& graph, const ir::Index& index) {
  std::vector<Gather> gathers;
  for (const auto& op : graph.ops()) {
    if (!op->is("all_gather.start") || !ir::is_repeated(op->section)) continue;
    Gather g;
    g.wait = index.only_reader(op->result());
    if (!g.wait || !add_own(index, op->operands[0], g.start) || !add_params(op->operands[0], g.params)) continue;
    g.start.push_back(op.get());
    gathers.push_back(std::move(g));
  }
  std::ranges::stable_sort(gathers, {}, [&](const Gather& g) { return index.position(g.wait); });
  return gathers;
}

// Gathers outside of backward of params that no gather of backward reads.
std::vector<Gather> find_once(const Graph& graph, const ir::Index& index) {
  std::vector<Gather> gathers = gathers_to_share(graph, index);
  std::set<const Op*> again;
  for (const Gather& g : gathers)
    if (g.start.back()->section == Section::Bwd) again.insert(g.params.begin(), g.params.end());
  std::erase_if(gathers, [&](const Gather& g) {
    return std::ranges::any_of(g.params, [&](const Op* param) { return again.contains(param); });
  });
  return gathers;
}

}  // namespace

bool gather_once(Graph& graph, PassContext& ctx) {
  const std::vector<Gather> gathers = find_once(graph, ir::Index(graph));
  const Op* last_given = nullptr;
  for (const auto& op : graph.ops())
    if (op->section == Section::Init) last_given = op.get();
  ir::Moves moves(graph);
  for (const Gather& g : gathers) {
    moves.after(last_given, g.start);
    for (Op* op : g.start) op->section = Section::Init;
    ctx.metrics.add("gathers", 1);
    ctx.metrics.add("bytes", g.start.back()->result()->type().bytes());
  }
  moves.apply();
  SFSDP_CHECK(find_once(graph, ir::Index(graph)).empty(), "a gather of params still starts in forward alone");
  return !gathers.empty();
}

}  // namespace sfsdp::passes
