// SPDX-License-Identifier: BSD-3-Clause
// Whether lanes that wait for each other by the plan's edges alone read what they mean to read: a model of memory, byte range by byte range, over two
// steps of three micro-batches. Knows no lifetimes: it follows what is written and read. Loops run without a trip and with two, which stands
// for all numbers (trips_to_check in lanes.h).
#pragma once

#include <string>
#include <vector>

#include "sfsdp/plan/step_plan.h"

namespace sfsdp::plan {

// What is wrong, at most ten of each plan: memory that does not hold the value that is read, as another was written over it; a read that may come
// before the write, or a write before the reads of what it replaces, as no edge orders them; a value without memory; what a collective touches
// outside of the window. check_lanes must have found the plan's lanes whole.
std::vector<std::string> check_hazards(const StepPlan& plan);

}  // namespace sfsdp::plan
