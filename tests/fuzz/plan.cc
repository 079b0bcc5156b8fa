// SPDX-License-Identifier: BSD-3-Clause
// The text of a step's plan.
#include "sfsdp/base/check.h"
#include "sfsdp/plan/step_plan.h"
#include "sfsdp/plan/verify/verify_plan.h"
#include "sfsdp/testing/random_graph.h"
#include "target.h"

namespace sfsdp::fuzz {
namespace {

void read(std::string_view bytes) {
  const plan::StepPlan plan = plan::parse_plan(bytes, "fuzz.plan");
  plan::verify_plan(plan);
  const std::string text = plan::print(plan);
  SFSDP_CHECK(plan::print(plan::parse_plan(text)) == text, "the plan's text changes when read:\n", text);
}

std::vector<std::string> seeds() {
  std::vector<std::string> texts;
  for (uint64_t seed = 0; seed < 4; ++seed)
    texts.push_back(plan::print(plan::make_plan(testing::random_program(seed), {})));
  return texts;
}

SFSDP_FUZZ_TARGET(plan, read, seeds)

}  // namespace
}  // namespace sfsdp::fuzz
