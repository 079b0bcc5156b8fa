// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/run_facts.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "sfsdp/ir/parser.h"
#include "sfsdp/plan/memory_plan.h"

namespace sfsdp::train::run_facts_test {

// By hand: 16 × 32 floats of %w and %m each are state; the product reads all 32 × 32 of the weight.
TEST_CASE("planned memory is split by what it is for, and adds up to the plan's peak") {
  const ir::Graph graph = ir::parse_or_throw(R"(graph mesh [dp=2] view local
    %w = param name=w : f32[16/dp, 32]
    %m = state name=w.exp_avg : f32[16/dp, 32]
    %x = input name=batch.0 : f32[8, 32] own(dp)
  fwd:
    %full = all_gather %w axis=dp dim=0 : f32[32, 32]
    %w.t = aten.t %full : f32[32, 32]{1, 32}
    %y = aten.mm %x, %w.t : f32[8, 32]
    return %y
  )");
  const PlannedMemory memory = planned_memory(graph);
  const plan::MemoryPlan plan = plan::plan_memory(graph, {.blocking = true});
  CHECK(memory.total() == plan.state_bytes + plan.live_bytes);
  CHECK(memory.parameters == 16 * 32 * 4);
  CHECK(memory.optimizer == 16 * 32 * 4);
  CHECK(memory.gathered == 32 * 32 * 4);
}

TEST_CASE("a line of run.jsonl has the configuration, whatever characters it holds") {
  RunFacts facts;
  facts.config.job.description = "a \"quoted\" </script> line\n";
  facts.config.training.steps = 40;
  facts.last_step = 10;
  facts.start_seconds = 1700000000;
  facts.memory.gathered = 5;
  facts.libtorch = "2.13.0";
  const auto json = nlohmann::json::parse(json_line(facts));
  CHECK(json["started"] == "2023-11-14T22:13:20Z");
  CHECK(json["first_step"] == 11);
  CHECK(json["last_step"] == 40);
  CHECK(json["version"].get<std::string>().starts_with("0."));
  CHECK(json["libtorch"] == "2.13.0");
  CHECK(json["planned_memory_bytes"]["gathered"] == 5);
  CHECK(json["config"] == to_toml(facts.config));
}

}  // namespace sfsdp::train::run_facts_test
