// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/reshard.h"

#include <algorithm>
#include <map>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/passes/param_flow.h"
#include "sfsdp/passes/param_reads.h"

namespace sfsdp::passes {

using ir::Op, ir::Section, ir::Value;

bool reshard(ir::Graph& graph, PassContext& ctx) {
  const ParamReader reader(graph);
  std::map<Value*, Value*> replaced;
  std::vector<Op*> erased;
  for (const auto& op : graph.ops()) {
    if (!op->is("param") || !op->has_attr("keep") || !op->attr<bool>("keep")) continue;
    const ParamFlow flow = reader.read(op.get());
    const auto forward = std::ranges::find_if(
        flow.uses, [](const ParamUse& use) { return use.section != Section::Bwd && !use.chain.empty(); });
    if (forward == flow.uses.end()) continue;
    for (const ParamUse& use : flow.uses) {
      if (use.section != Section::Bwd || use.chain.empty()) continue;
      replaced[use.value] = forward->value;
      erased.insert(erased.end(), use.chain.begin(), use.chain.end());
      ctx.metrics.add("gathers_saved", 1);
    }
  }
  graph.replace_uses(replaced);
  graph.erase(erased);
  for (const auto& op : graph.ops()) {
    if (op->section != Section::Bwd || !op->is("all_gather")) continue;
    const Op* param = param_of(op->result());
    const bool kept = param && param->has_attr("keep") && param->attr<bool>("keep") && replaced.contains(op->result());
    SFSDP_CHECK(!kept, "param ", param->result()->name(), " is kept gathered and gathered again in backward");
  }
  return !erased.empty();
}

}  // namespace sfsdp::passes
