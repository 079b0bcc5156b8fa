// SPDX-License-Identifier: BSD-3-Clause
// Why a plan has as many kernels and buffers as it has.
#pragma once

#include <iosfwd>
#include <string>

#include "sfsdp/plan/step_plan.h"

namespace sfsdp::tools {

// Ops that are in other kernels than what they read, and results that lie over no operand: counted by reason, most first, with
// the first three of each by op and module path.
//   path: of ops, and of all modules below it; "": of all
//   throws: UserError where no op has such a path
void explain_plan(const plan::StepPlan& plan, const std::string& path, std::ostream& out);

}  // namespace sfsdp::tools
