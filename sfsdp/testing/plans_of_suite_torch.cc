// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/plans_of_suite_torch.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <mutex>
#include <unordered_map>

#include "sfsdp/base/strings.h"
#include "sfsdp/ir/part.h"
#include "sfsdp/mesh/device_mesh.h"
#include "sfsdp/plan/step_plan.h"
#include "sfsdp/plan/verify/verify_plan.h"

// Each compiled plan goes through plan::verify_plan. In torch_tests the linker sends its callers to the first of these, and
// the second is the function itself (--wrap in CMakeLists.txt): nothing that is not a test knows of it.
std::vector<std::string>
seen_by_tests(const sfsdp::plan::StepPlan& plan, const sfsdp::plan::VerifyOptions& options) asm(
    "__wrap__ZN5sfsdp4plan11verify_planB5cxx11ERKNS0_8StepPlanERKNS0_13VerifyOptionsE");
std::vector<std::string>
verify_plan_itself(const sfsdp::plan::StepPlan& plan, const sfsdp::plan::VerifyOptions& options) asm(
    "__real__ZN5sfsdp4plan11verify_planB5cxx11ERKNS0_8StepPlanERKNS0_13VerifyOptionsE");

namespace sfsdp::testing {
namespace {

struct Seen {
  std::mutex mutex;
  std::vector<SeenPlan> plans;
  std::unordered_map<uint64_t, size_t> place;  // in plans, by the plan's hash
};

Seen& seen() {
  static Seen all;
  return all;
}

int64_t work_of(const plan::StepPlan& plan) {
  int64_t work = 0;
  for (const auto& op : plan.graph.ops())
    for (const auto& result : op->results())
      work += result->type().numel() * (ir::is_repeated(op->section) ? plan.graph.micro_batches : 1);
  return work * DeviceMesh(plan.graph.mesh).world_size();
}

void note(const plan::StepPlan& plan) {
  const int64_t work = work_of(plan);
  const auto* running = doctest::getContextOptions()->currentTest;
  const std::scoped_lock lock(seen().mutex);
  if (!seen().place.emplace(plan::hash(plan), seen().plans.size()).second) return;
  seen().plans.push_back(
      {work <= largest_work() ? plan::print(plan) : "", running ? running->m_name : "no test", work});
}

}  // namespace

bool runs_all() { return std::getenv("SFSDP_LARGEST_PLAN") != nullptr; }

int64_t largest_work() {
  static const int64_t bound = runs_all() ? parse_int(std::getenv("SFSDP_LARGEST_PLAN")).value() : 200'000;
  return bound;
}

std::vector<SeenPlan> plans_of_suite() {
  const std::scoped_lock lock(seen().mutex);
  return seen().plans;
}

void note_run(const plan::StepPlan& plan) {
  const uint64_t hash = plan::hash(plan);
  const std::scoped_lock lock(seen().mutex);
  if (const auto found = seen().place.find(hash); found != seen().place.end())
    seen().plans[found->second].has_run = true;
}

}  // namespace sfsdp::testing

std::vector<std::string> seen_by_tests(const sfsdp::plan::StepPlan& plan, const sfsdp::plan::VerifyOptions& options) {
  std::vector<std::string> wrong = verify_plan_itself(plan, options);
  if (wrong.empty()) sfsdp::testing::note(plan);
  return wrong;
}
