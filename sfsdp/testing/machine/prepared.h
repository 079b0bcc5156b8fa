// SPDX-License-Identifier: BSD-3-Clause
// What is the same each time a plan runs, worked out once.
#pragma once

#include <cstdint>
#include <vector>

#include "sfsdp/ir/side_table.h"
#include "sfsdp/plan/places.h"
#include "sfsdp/testing/machine/program.h"

namespace sfsdp::plan::machine {

// Borrows the plan. Never changes.
struct Prepared {
  Prepared(const StepPlan& of, int64_t steps);

  const StepPlan& plan;
  std::vector<Places> places;                  // by rank
  std::vector<TaskRun> drained, running_on;    // write_out's
  ir::ValueTable<std::vector<int64_t>> begin;  // of each element, bytes from the first one's
  ir::ValueTable<int64_t> end;                 // of the last element, likewise; 0: there are none
};

}  // namespace sfsdp::plan::machine
