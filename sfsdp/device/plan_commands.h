// SPDX-License-Identifier: BSD-3-Clause
// A plan as a device is told it: what each lane launches, and the plan's edges as events.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "sfsdp/device/device.h"
#include "sfsdp/plan/step_plan.h"

namespace sfsdp::device {

// Commands that are issued one after the other, as often as a loop says.
struct Stretch {
  std::vector<Command> commands;
  const ir::Op* loop = nullptr;  // whose body it is; nullptr: once
  uint32_t begun = 0;            // the event after which the number of trips lies in memory
};

struct PlanCommands {
  std::array<std::vector<Stretch>, ir::kParts> parts;  // by part of the step, in the program's order
  std::vector<uint32_t> before_load;                   // events that the host waits for before it writes region io
  size_t lanes = 0, events = 0;
};

// Each task of the plan's program waits for the events of its edges, and is launched. An event for each task that others wait for.
//   kernel_of: what runs a task
// The tasks that wait for the host (HostLoad::before) need no event, as the host issues them after it has written.
//   throws: UserError where an edge or the host names a task that the program has not
PlanCommands commands_of(const plan::StepPlan& plan, const std::function<Kernel*(const plan::Task&)>& kernel_of);

}  // namespace sfsdp::device
