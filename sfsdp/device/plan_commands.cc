// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/device/plan_commands.h"

#include <map>
#include <set>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/cost/kernels.h"
#include "sfsdp/ir/loops.h"

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
  const std::map<plan::Task, const ir::Op*> bodies = plan::loops_of_tasks(plan.graph, plan.lanes);
  const cost::Kernels kernels = cost::kernels_of(plan.graph);
  std::map<const ir::Op*, uint32_t> begun;  // when the number of trips is there, for which the host waits
  for (const ir::Loop& loop : ir::loops_of(plan.graph))
    begun[loop.begin] = event({0, static_cast<size_t>(kernels.of[loop.first])});
  std::map<plan::Task, std::vector<uint32_t>> waits;
  for (const plan::Edge& edge : plan.edges) waits[edge.to].push_back(event(edge.from));
  PlanCommands commands;
  for (const plan::Task& task : plan.load.after) commands.before_load.push_back(event(task));
  commands.lanes = plan.lanes.size() + 1;
  for (size_t p = 0; p < actions.size(); ++p) {
    std::vector<Stretch>& part = commands.parts[p];
    part.emplace_back();
    for (const plan::Action& action : actions[p]) {
      if (action.kind != plan::Action::Run && action.kind != plan::Action::Start) continue;
      const auto body = bodies.find(action.task);
      const ir::Op* loop = body == bodies.end() ? nullptr : body->second;
      if (loop != part.back().loop) part.push_back({.commands = {}, .loop = loop, .begun = loop ? begun.at(loop) : 0});
      std::vector<Command>& stretch = part.back().commands;
      const auto lane = static_cast<uint32_t>(action.task.lane);
      if (const auto found = waits.find(action.task); found != waits.end())
        for (const uint32_t awaited : found->second) stretch.push_back({Command::Wait, lane, awaited});
      stretch.push_back({Command::Launch, lane, 0, kernel_of(action.task)});
      if (const auto found = event_of.find(action.task); found != event_of.end())
        stretch.push_back({Command::Record, lane, found->second});
    }
  }
  commands.events = event_of.size();
  return commands;
}

}  // namespace sfsdp::device
