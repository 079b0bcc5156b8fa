// SPDX-License-Identifier: BSD-3-Clause
// A plan as a picture: kernels and collectives on their lanes in the order of the program, what waits for what, and where each buffer lies in its
// region from when to when. One file without any other.
#pragma once

#include <string>
#include <string_view>

#include "sfsdp/plan/step_plan.h"

namespace sfsdp::plan {

//   title: such as "llama3 8B on 64 ranks"
std::string plan_page(const StepPlan& plan, const std::string& title);

// plan_page.html as text; CMake makes the .cc of it.
std::string_view plan_page_part();

}  // namespace sfsdp::plan
