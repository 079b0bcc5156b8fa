// SPDX-License-Identifier: BSD-3-Clause
// What two plans differ in, in words.
#pragma once

#include <string>
#include <vector>

#include "sfsdp/plan/step_plan.h"

namespace sfsdp::plan {

// A line for each difference, values and ops by their names: target, ops, kernels, lanes, edges, what the host waits for,
// what lies inside what, addresses, views, sizes of regions. At most `most` of a kind, then how many more there are. Empty where
// print(a) == print(b).
std::vector<std::string> differences(const StepPlan& a, const StepPlan& b, size_t most = 10);

}  // namespace sfsdp::plan
