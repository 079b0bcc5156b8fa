// SPDX-License-Identifier: BSD-3-Clause
// What a rank runs, task by task, and what each task waits for: the plan's lanes and edges written out over several steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "sfsdp/ir/part.h"
#include "sfsdp/plan/step_plan.h"

namespace sfsdp::plan::machine {

// One run of a task. Lane 0 computes, then come the communicators' lanes, and that of the host.
struct TaskRun {
  enum Kind : uint8_t {
    Kernel,
    Collective,
    LoadBatch,  // the host writes the inputs of a micro-batch
    EndStep,    // the host reads what the step returns
    Loop,       // reads how many trips there are
    EndLoop,
  };
  Kind kind = Kernel;
  size_t lane = 0;
  std::vector<const ir::Op*> ops = {};  // of the kernel; the collective
  int64_t step = 0, micro_batch = 0;
  bool adds = false;                  // sums of micro-batches before this one are there
  std::vector<size_t> after = {};     // runs that must be over, by number; besides those before it on its lane
  std::optional<size_t> before = {};  // the run of the same task before this one
  std::optional<size_t> loop = {};    // of what a body does: the run of its loop
  int64_t trip = 0;                   // in which it does it
};

// The runs of `steps` steps, the same on all ranks; each lane takes its own in this order. Loops have as many trips as they may
// have at most: a rank skips those that it does not make.
//   drains: a step begins once all lanes are through the one before it; else lanes run on, and the host reads the last step alone
std::vector<TaskRun> write_out(const StepPlan& plan, int64_t steps, bool drains);

}  // namespace sfsdp::plan::machine
