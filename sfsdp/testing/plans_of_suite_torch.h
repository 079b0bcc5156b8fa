// SPDX-License-Identifier: BSD-3-Clause
// The plans that the programs of torch_tests compile, each text once: for the plan machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sfsdp/plan/step_plan.h"

namespace sfsdp::testing {

struct SeenPlan {
  std::string text;      // empty where work is above largest_work()
  std::string test;      // whose program had it first
  int64_t work = 0;      // elements that its ops make in a step, on all ranks
  bool has_run = false;  // by a test of its own
};

// A plan of more is not kept: its text alone has megabytes, and 20 schedules take seconds. SFSDP_LARGEST_PLAN, a number, is the
// bound instead, and all that it keeps are run: for an hour, now and then.
int64_t largest_work();
bool runs_all();

// What plan::verify_plan has found sound so far, in the order in which it was made. Thread-safe.
std::vector<SeenPlan> plans_of_suite();

// A test has run the plan under as many schedules as it needs.
void note_run(const plan::StepPlan& plan);

}  // namespace sfsdp::testing
