// SPDX-License-Identifier: BSD-3-Clause
// Runs last of all, as tests run in the order of their files: the plans that the tests before have compiled, on the plan machine.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/plan/step_plan.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing/libtorch_kernels_torch.h"
#include "sfsdp/testing/machine/reference.h"
#include "sfsdp/testing/plans_of_suite_torch.h"
#include "sfsdp/testing/tiny_models_torch.h"

namespace sfsdp::testing {
namespace plans_of_suite_test {

// Elements that the ops of all plans make which are run: 30 s on two cores that others load as well. The smallest plans come first.
constexpr int64_t kMostWork = 4'000'000;

TEST_CASE("plans of the suite: what a program compiles is seen, once") {
  const size_t before = plans_of_suite().size();
  CompileOptions options;
  options.max_norm = 0.75;  // of no other test
  const auto compile_one = [&] {
    compile_program(meta_init(make_gpt), loss_of, kAdamW, tokens(0, 0, 1, 3),
                    data_parallel(init_device_mesh({{"dp_shard", 2}})), options);
  };
  compile_one();
  REQUIRE(plans_of_suite().size() == before + 1);
  CHECK(plans_of_suite().back().test == "plans of the suite: what a program compiles is seen, once");
  compile_one();
  CHECK(plans_of_suite().size() == before + 1);
}

// What an integer of a batch names is there in every table and loss of the suite.
void name_two_alone(const plan::StepPlan& plan, std::vector<plan::machine::Inputs>& by_rank) {
  for (const auto& op : plan.graph.ops())
    for (auto& inputs : by_rank)
      for (int64_t m = 0; op->is("input") && m < plan.graph.micro_batches; ++m)
        if (!ir::is_floating(op->result()->type().dtype))
          for (double& x : inputs.at(ir::interp::input_key(op->attr<std::string>("name"), m)).data) x = std::fmod(x, 2);
}

TEST_CASE("plans of the suite: each that is small is what the interpreter computes, under 20 schedules") {
  std::vector<SeenPlan> plans = plans_of_suite();
  std::ranges::stable_sort(plans, {}, &SeenPlan::work);
  std::map<std::string, int64_t> refused;                 // by reason
  std::map<std::string, std::vector<int64_t>> too_large;  // by test: work
  int64_t ran = 0, had_run = 0, work = 0;
  for (const SeenPlan& seen : plans) {
    if (seen.has_run) {
      ++had_run;
      continue;
    }
    if (seen.text.empty() || (!runs_all() && work + seen.work > kMostWork)) {
      too_large[seen.test].push_back(seen.work);
      continue;
    }
    CAPTURE(seen.test);
    CAPTURE(seen.text.substr(0, seen.text.find("\nfwd:")));
    work += seen.work;
    const plan::StepPlan plan = plan::parse_plan(seen.text);
    std::string found;
    try {
      found = plan::machine::find_difference(
          plan, {.other = run_in_libtorch, .edit = [&](auto& by_rank) { name_two_alone(plan, by_rank); }});
    } catch (const UserError& error) {  // made-up numbers that an op does not take, or that leave no finite one
      ++refused[concat(split(error.what(), '\n')[0], " in ", seen.test)];
      continue;
    }
    CHECK(found == "");
    ++ran;
    if (runs_all() && ran % 50 == 0) MESSAGE(ran, " plans so far, up to ", seen.work, " elements");
  }
  std::string lines;
  for (const auto& [reason, count] : refused) lines += concat("\n  ", count, " on made-up numbers: ", reason);
  for (const auto& [test, works] : too_large)  // from small to large
    lines += concat("\n  ", works.size(), " of ", works.front(), " to ", works.back(), " elements: ", test);
  MESSAGE("20 schedules of ", ran, " plans, and of ", had_run, " by tests of their own; not run:", lines);
  int64_t all_refused = 0;
  for (const auto& [reason, count] : refused) all_refused += count;
  CHECK(all_refused <= 1 + ran / 20);
  constexpr size_t kWholeSuite = 1000;  // plans; fewer where tests are chosen by name
  if (plans.size() >= kWholeSuite) CHECK(ran >= 300);
}

}  // namespace plans_of_suite_test
}  // namespace sfsdp::testing
