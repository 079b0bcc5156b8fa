// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/sim/collective_rules.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/part.h"

namespace sfsdp::sim {
namespace {

using ir::Op, ir::Part;

bool is_gathered_once(const Op& op) {
  return ir::part_of(op.section) == Part::Head && ir::collective_kind(op) == "all_gather";
}

// Elements of each parameter that a gather brings, its flat shard's members or what was packed for it.
std::vector<int64_t> parameters_in(const Op& gather) {
  const Op* from = gather.operands[0]->producer();
  while (from->is("cast", "pad") || ir::aliased_operand(*from) >= 0) from = from->operands[0]->producer();
  if (const auto* numels = from->find_attr<std::vector<int64_t>>("numels"); numels && from->is("param")) return *numels;
  if (!from->is("pack")) return {1};
  std::vector<int64_t> numels;
  for (const ir::Value* packed : from->operands) numels.push_back(packed->type().numel());
  return numels;
}

}  // namespace

CollectiveRules::CollectiveRules(const ir::Graph& graph, bool all_block, StepGathers gathers, Reductions reductions)
    : all_block_(all_block), gathers_(gathers), reductions_(reductions) {
  const auto once = [](const auto& op) { return is_gathered_once(*op); };
  const bool dealt = gathers == StepGathers::BroadcastUpdate || gathers == StepGathers::BroadcastForward;
  broadcasts_ = dealt && std::ranges::any_of(graph.ops(), once);
}

bool CollectiveRules::blocks(const Op& start) const {
  if (all_block_) return true;
  if (ir::part_of(start.section) == Part::Head)
    return gathers_ == StepGathers::Update || gathers_ == StepGathers::BroadcastUpdate;
  const bool reduces = start.section == ir::Section::Bwd && ir::collective_kind(start) != "all_gather";
  return reduces && reductions_ == Reductions::Block;
}

std::string CollectiveRules::kind_of(const Op& op) const {
  const std::string_view kind = ir::collective_kind(op);
  if (broadcasts_ && is_gathered_once(op)) return "broadcast";
  if (broadcasts_ && kind == "reduce_scatter") return "all_reduce";
  return std::string(kind);
}

// Owners broadcast parameters one by one.
cost::CollectiveCost cost_of(const Op& op, const std::string& kind, double bytes, cost::GroupShape group,
                             const cost::Machine& machine) {
  if (kind != "broadcast") return cost::collective_cost(kind, bytes, group, machine);
  const std::vector<int64_t> numels = parameters_in(op);
  const auto all = static_cast<double>(std::max<int64_t>(std::reduce(numels.begin(), numels.end()), 1));
  cost::CollectiveCost sum;
  for (const int64_t numel : numels) {
    const cost::CollectiveCost one =
        cost::collective_cost("broadcast", bytes * static_cast<double>(numel) / all, group, machine);
    sum.latency += one.latency;
    sum.node += one.node;
    sum.network += one.network;
  }
  return sum;
}

}  // namespace sfsdp::sim
