// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/bucket/reshard.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/builder.h"
#include "sfsdp/passes/analysis/param_flow.h"
#include "sfsdp/passes/analysis/param_reads.h"

namespace sfsdp::passes {

using ir::Op, ir::Section;

namespace {

bool is_gathered_in(const ParamFlow& flow, bool backward) {
  return std::ranges::any_of(
      flow.uses, [&](const ParamUse& use) { return (use.section == Section::Bwd) == backward && !use.chain.empty(); });
}

// Marks the params of the unit that forward reads last, if backward would gather it again.
bool mark_last(const ir::Graph& graph, const ParamReader& reader) {
  std::map<std::string, std::vector<Op*>> units;
  std::string last;
  size_t position = 0;
  for (const auto& op : graph.ops()) {
    if (!op->is("param") || !op->has_attr("unit")) continue;
    const auto& unit = op->attr<std::string>("unit");
    const ParamFlow flow = reader.read(op.get());
    if (!is_gathered_in(flow, false)) continue;
    for (const ParamUse& use : flow.uses) {
      if (use.section == Section::Bwd) continue;
      for (const Op* by : use.readers)
        if (reader.index().position(by) >= position) {
          position = reader.index().position(by);
          last = unit;
        }
    }
    if (is_gathered_in(flow, true)) units[unit].push_back(op.get());
  }
  bool marked = false;
  for (Op* param : units[last]) {
    marked |= !param->has_attr("keep");
    param->attrs["keep"] = true;
  }
  return marked;
}

}  // namespace

const std::vector<Field<ReshardOptions>>& ReshardOptions::fields() {
  static const std::vector<Field<ReshardOptions>> kFields = {
      field("keep_last", &ReshardOptions::keep_last, {}, "also of the unit that forward reads last")};
  return kFields;
}

bool reshard(ir::Graph& graph, const ReshardOptions& options, PassContext& ctx) {
  const ParamReader reader(graph);
  const bool marked = options.keep_last && mark_last(graph, reader);
  ir::Builder build(graph);
  std::set<const Op*> kept;  // params that backward does not gather any more
  for (const auto& op : graph.ops()) {
    if (!op->is("param") || !op->has_attr("keep") || !op->attr<bool>("keep")) continue;
    const ParamFlow flow = reader.read(op.get());
    const auto forward = std::ranges::find_if(flow.uses, [](const ParamUse& use) {
      return use.section != Section::Bwd && ir::is_repeated(use.section) && !use.chain.empty();
    });
    if (forward == flow.uses.end()) continue;
    bool all = true, any = false;
    for (const ParamUse& use : flow.uses) {
      if (use.section != Section::Bwd || use.chain.empty()) continue;
      const bool same = use.value->type() == forward->value->type() &&
                        reader.index().position(forward->value->producer()) < reader.index().position(use.chain[0]);
      (same ? any : all) = same;
      if (!same) continue;
      build.replace(use.value, forward->value);
      build.erase(use.chain);
      ctx.metrics.add("gathers_saved", 1);
    }
    if (any && all) kept.insert(op.get());
  }
  build.apply("reshard");
  for (const auto& op : graph.ops()) {
    if (op->section != Section::Bwd || !op->is("all_gather") || moves_over_tensor_axis(*op)) continue;
    const Op* param = param_of(op->result());
    SFSDP_CHECK(!kept.contains(param), "param ", param->result()->name(),
                " is kept gathered and gathered again in backward");
  }
  return marked || ctx.metrics.get("gathers_saved") > 0;
}

}  // namespace sfsdp::passes
