// SPDX-License-Identifier: BSD-3-Clause
// Plans as files, and what is said of them.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

#include "sfsdp/plan/step_plan.h"
#include "sfsdp/tools/commands.h"

namespace sfsdp::tools {

// Reads and verifies the plan of a file that `sfsdp plan --out` wrote. `option`: what named it, such as "--check".
//   throws: UserError naming file and line; runtime_error with all that the verifier finds
plan::StepPlan read_plan(const std::string& path, const std::string& option);
// throws: UserError naming the option and the path
void write_text(const std::string& text, const std::string& path, const std::string& option);
// The budget of gathers of a plan that was just compiled, and so proved but for that.
//   throws: UserError with all that the verifier finds
void verify_budget_or_throw(const plan::StepPlan& plan, int64_t prefetch_bytes);

// A summary, or --json; and the page of --html.
void show_plan(const Request& request, const plan::StepPlan& plan, const std::string& title, std::ostream& out);

// `sfsdp plan --check FILE`, also with --explain.
int run_check_plan(const Request& request, std::ostream& out, std::ostream& err);
// `sfsdp plan --diff A B`. Sound or not: it is their texts that are compared.
//   returns: 0 where the plans are the same, else 1
int run_diff_plans(const Request& request, std::ostream& out, std::ostream& err);
// throws: UserError where a plan is named that --diff does not compare
void refuse_operands(const Request& request);

}  // namespace sfsdp::tools
