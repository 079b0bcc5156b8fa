// SPDX-License-Identifier: BSD-3-Clause
// Whether a plan may run. Every plan is verified before its first step.
#pragma once

#include <string>
#include <vector>

#include "sfsdp/plan/step_plan.h"

namespace sfsdp::plan {

struct VerifyOptions {
  int64_t prefetch_bytes =
      0;  // most that may be in flight in gathers at once, besides the first that started; 0: no bound
};

// Proves, or says what is wrong:
//   graph     ir::verify: definition, types, start and wait, donated buffers, sections, carries
//   lanes     every collective once, on the lane of its axes, in the graph's order
//   ranks     check_rendezvous: no deadlock, whatever the timing; it has nothing to run where all ranks share a program
//   states    check_axis_states: nothing own leaves the step unreduced, nothing is reduced twice, no shard is taken for
//             the whole
//   layouts   verify_layouts: the same of model axes; nothing cut is taken for the whole, no summand for the sum
//   sums      check_packed_sums: of gradients that are summed side by side each is the right bucket's, once
//   kernels   check_kernels: no op of a kernel reads what another part of the same kernel makes
//   memory    check_buffers: a buffer for every value that reaches memory, as large and alive as long as the graph needs, in its region; none overlap;
//             what loops carry lies in one place; no region is larger than what lies in it, workspaces are the target's, the sums in the head are right
//   edges     check_hazards: whoever reads a value finds it in memory, and no lane overtakes another
//   budget    gathers in flight
std::vector<std::string> verify_plan(const StepPlan& plan, const VerifyOptions& options = {});

// The budget alone, of a plan that verify_plan has proved without one.
std::vector<std::string> verify_budget(const StepPlan& plan, int64_t prefetch_bytes);

}  // namespace sfsdp::plan
