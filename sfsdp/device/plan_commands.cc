// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/device/plan_commands.h"

#include <map>
#include <set>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"

namespace sfsdp::device {

PlanCommands commands_of(const plan::StepPlan& plan, const std::function<Kernel*(const plan::Task&)>& kernel_of) {
  const plan::Actions actions = plan::actions_of(plan.graph, plan.lanes);
  std::set<plan::Task> tasks;
  for (const auto& part : actions)
    for (const plan::Action& action : part)
      if (action.kind == plan::Action::Run || action.kind == plan::Action::Start) tasks.insert(action.task);
  std::map<plan::Task, uint32_t> event_of;
  const auto event = [&](const plan::Task& task) {
    if (!tasks.contains(task))
      throw UserError(concat("plan: somebody waits for task ", task.number, " of lane ", task.lane,
                             ", which no part of the step runs\n  expected a task of the plan's program"));
    return event_of.emplace(task, static_cast<uint32_t>(event_of.size())).first->second;
  };
  std::map<plan::Task, std::vector<uint32_t>> waits;
  for (const plan::Edge& edge : plan.edges) waits[edge.to].push_back(event(edge.from));
  PlanCommands commands;
  for (const plan::Task& task : plan.load.after) commands.before_load.push_back(event(task));
  commands.lanes = plan.lanes.size() + 1;
  commands.events = event_of.size();
  for (size_t p = 0; p < actions.size(); ++p) {
    std::vector<Command>& part = commands.parts[p];
    for (const plan::Action& action : actions[p]) {
      if (action.kind != plan::Action::Run && action.kind != plan::Action::Start) continue;
      const auto lane = static_cast<uint32_t>(action.task.lane);
      if (const auto found = waits.find(action.task); found != waits.end())
        for (const uint32_t awaited : found->second) part.push_back({Command::Wait, lane, awaited});
      part.push_back({Command::Launch, lane, 0, kernel_of(action.task)});
      if (const auto found = event_of.find(action.task); found != event_of.end())
        part.push_back({Command::Record, lane, found->second});
    }
  }
  return commands;
}

}  // namespace sfsdp::device
