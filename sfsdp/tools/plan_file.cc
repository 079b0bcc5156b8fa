// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/plan_file.h"

#include <fstream>
#include <ostream>
#include <sstream>
#include <stdexcept>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/cost/kernels.h"
#include "sfsdp/plan/copied_bytes.h"
#include "sfsdp/plan/diff.h"
#include "sfsdp/plan/page/plan_page.h"
#include "sfsdp/plan/verify/verify_plan.h"
#include "sfsdp/tools/explain_plan.h"
#include "sfsdp/train/plan_summary.h"

namespace sfsdp::tools {

using train::bytes_text;

namespace {

void print_summary(std::ostream& out, const plan::StepPlan& plan) {
  out << "Plan " << hex(plan::hash(plan)) << ": " << plan.graph.ops().size() << " ops, target " << plan.target.name
      << ", verified\n  lane compute: " << cost::kernels_of(plan.graph).ops.size() << " kernels, workspace "
      << bytes_text(plan.memory.workspaces[0]) << "\n";
  for (size_t i = 0; i < plan.lanes.size(); ++i)
    out << "  lane " << plan::name_of(plan.lanes[i]) << ": " << plan.lanes[i].collectives.size()
        << " collectives, workspace " << bytes_text(plan.memory.workspaces[i + 1]) << "\n";
  const plan::MemoryPlan& m = plan.memory;
  out << "  edges between lanes: " << plan.edges.size() << "\n  memory:";
  for (size_t r = 0; r < plan::kRegions; ++r)
    out << (r > 0 ? ", " : " ") << plan::to_string(static_cast<plan::Region>(r)) << " "
        << bytes_text(m.region_bytes[r]);
  out << "; " << m.buffers.size() << " buffers, most alive at op " << m.peak_position << "\n";
  const plan::CopiedBytes copied = plan::copied_bytes(plan);
  out << "  copied into buckets: " << bytes_text(copied.in) << " a step, out of them: " << bytes_text(copied.out)
      << "\n";
}

void print_json(std::ostream& out, const plan::StepPlan& plan) {
  size_t collectives = 0;
  for (const plan::CommLane& lane : plan.lanes) collectives += lane.collectives.size();
  const plan::MemoryPlan& m = plan.memory;
  const plan::CopiedBytes copied = plan::copied_bytes(plan);
  out << "{\"hash\": \"" << hex(plan::hash(plan)) << "\", \"target\": " << json_quoted(plan.target.name)
      << ", \"ops\": " << plan.graph.ops().size() << ", \"kernels\": " << cost::kernels_of(plan.graph).ops.size()
      << ", \"lanes\": " << plan.lanes.size() << ", \"collectives\": " << collectives
      << ", \"edges\": " << plan.edges.size() << ", \"buffers\": " << m.buffers.size()
      << ", \"state_bytes\": " << m.state_bytes << ", \"arena_bytes\": " << m.arena_bytes
      << ", \"live_bytes\": " << m.live_bytes << ", \"workspace_bytes\": " << m.workspace_bytes()
      << ", \"bytes_copied_in\": " << copied.in << ", \"bytes_copied_out\": " << copied.out << "}\n";
}

plan::StepPlan parse_file(const std::string& path, const std::string& option) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (!file)
    throw UserError(concat(option, " ", path, " cannot be read\n  expected a file that sfsdp plan --out wrote"));
  return plan::parse_plan(text.str(), path);
}

void refuse(const std::vector<std::string>& errors) {
  if (!errors.empty()) throw UserError("the plan may not run:\n" + join(errors, "\n"));
}

}  // namespace

void verify_budget_or_throw(const plan::StepPlan& plan, int64_t prefetch_bytes) {
  refuse(plan::verify_budget(plan, prefetch_bytes));
}

plan::StepPlan read_plan(const std::string& path, const std::string& option) {
  plan::StepPlan plan = parse_file(path, option);
  refuse(plan::verify_plan(plan));
  return plan;
}

void write_text(const std::string& text, const std::string& path, const std::string& option) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file)
    throw UserError(concat(option, " ", path, " cannot be written\n  expected a file in a folder that exists"));
}

void show_plan(const Request& request, const plan::StepPlan& plan, const std::string& title, std::ostream& out) {
  if (request.has("html")) write_text(plan::plan_page(plan, title), request.get("html"), "--html");
  if (request.has("json"))
    print_json(out, plan);
  else
    print_summary(out, plan);
}

void refuse_operands(const Request& request) {
  for (const std::string& operand : request.own.operands)
    throw UserError(concat("argument ", operand, "\n  expected a flag of sfsdp plan; --diff A B compares two plans"));
}

int run_check_plan(const Request& request, std::ostream& out, std::ostream&) {
  refuse_operands(request);
  const std::string path = request.get("check");
  const plan::StepPlan plan = read_plan(path, "--check");
  if (request.has("explain"))
    explain_plan(plan, request.get("explain"), out);
  else
    show_plan(request, plan, path, out);
  return 0;
}

int run_diff_plans(const Request& request, std::ostream& out, std::ostream&) {
  if (request.own.operands.size() != 1 || request.own.options.size() != 1)
    throw UserError(
        "--diff takes two plans and nothing else\n  expected sfsdp plan --diff A B, files that sfsdp plan "
        "--out wrote");
  const std::string a = request.get("diff"), b = request.own.operands[0];
  const plan::StepPlan plan_a = parse_file(a, "--diff"), plan_b = parse_file(b, "--diff");
  const std::vector<std::string> lines = plan::differences(plan_a, plan_b);
  out << "A " << a << ": plan " << hex(plan::hash(plan_a)) << "\nB " << b << ": plan " << hex(plan::hash(plan_b))
      << '\n';
  for (const std::string& line : lines) out << line << '\n';
  if (lines.empty()) out << "the plans are the same\n";
  return lines.empty() ? 0 : 1;
}

}  // namespace sfsdp::tools
