// SPDX-License-Identifier: BSD-3-Clause
// Whether a plan has the state of its run where all the other plans on that state have it.
#pragma once

#include <string>
#include <vector>

#include "sfsdp/plan/step_plan.h"
#include "sfsdp/plan/storage_layout.h"

namespace sfsdp::plan {

// What is wrong, by the name of the state: it is not in the layout, has another dtype or size, lies elsewhere, or is left out, so that
// something else could lie there. The plan's stamp is compared with the layout's hash.
std::vector<std::string> check_state_addresses(const StepPlan& plan, const StorageLayout& layout);

}  // namespace sfsdp::plan
