// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/report/run_files.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "sfsdp/base/error.h"
#include "sfsdp/testing/temporary_folder.h"
#include "sfsdp/train/metrics.h"
#include "sfsdp/train/run_facts.h"

namespace sfsdp::train::run_files_test {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

RunFiles read(const std::string& metrics, const std::string& starts = "") {
  const testing::TemporaryFolder folder;
  folder.write("metrics.jsonl", metrics);
  if (!starts.empty()) folder.write("run.jsonl", starts);
  return read_run(folder.path());
}

}  // namespace

TEST_CASE("what json_line writes is read back, field by field") {
  StepMetrics metrics;
  metrics.step = 3;
  metrics.loss = 8.0 + 1.0 / 3;
  metrics.grad_norm = 1e-30 / 3;
  metrics.lr = 2e-3 / 7;
  metrics.tokens = 123456789;
  metrics.step_time_s = 0.5;
  metrics.data_s = 0.125;
  metrics.forward_backward_s = 0.25;
  metrics.optimizer_s = 0.0625;
  metrics.comm_exposed_s = 0.03125;
  metrics.between_s = 3;
  metrics.tps = 7;
  metrics.memory_gib = 1.5;
  metrics.memory_state_gib = 0.75;
  const RunFiles run = read(json_line(metrics) + "\n" + json_line(ValidationMetrics{.step = 3, .loss = 0.1}) + "\n");
  REQUIRE(run.steps.size() == 1);
  CHECK(run.problems.empty());
  const StepLine& line = run.steps[0];
  CHECK(line.step == 3);
  CHECK(line[Field::Loss] == metrics.loss);
  CHECK(line[Field::GradNorm] == metrics.grad_norm);
  CHECK(line[Field::Lr] == metrics.lr);
  CHECK(line[Field::Tokens] == 123456789);
  CHECK(line[Field::StepTime] == 0.5);
  CHECK(line[Field::Data] == 0.125);
  CHECK(line[Field::ForwardBackward] == 0.25);
  CHECK(line[Field::Optimizer] == 0.0625);
  CHECK(line[Field::Exposed] == 0.03125);
  CHECK(line[Field::Between] == 3);
  CHECK(line[Field::Tps] == 7);
  CHECK(line[Field::Memory] == 1.5);
  CHECK(line[Field::MemoryState] == 0.75);
  REQUIRE(run.validations.size() == 1);
  CHECK(run.validations[0].step == 3);
  CHECK(run.validations[0].loss == 0.1);
}

TEST_CASE("fields may be missing, unknown, not finite, or of another shape") {
  const RunFiles run = read(
      "{\"step\": 1, \"loss\": \"nan\", \"note\": \"text\"}\n"
      "{\"loss\": \"-inf\", \"step\": 2, \"nested\": {\"loss\": 5}, \"list\": [1, 2], \"escaped\": \"a\\\"b\"}\n"
      "\n"
      "{ \"step\" : 3 , \"loss\" : 2.5e0 }\r\n");
  CHECK(run.problems.empty());
  REQUIRE(run.steps.size() == 3);
  CHECK(std::isnan(run.steps[0][Field::Loss]));
  CHECK(std::isinf(run.steps[1][Field::Loss]));
  CHECK(run.steps[2][Field::Loss] == 2.5);
  CHECK(std::isnan(run.steps[2][Field::Tps]));
}

TEST_CASE("a step that stands there twice is the later line; nothing after it stays") {
  const RunFiles run = read(
      "{\"step\": 1, \"loss\": 1}\n{\"step\": 2, \"loss\": 2}\n{\"step\": 3, \"loss\": 3}\n{\"step\": 2, \"loss\": "
      "22}\n");
  REQUIRE(run.steps.size() == 2);
  CHECK(run.steps[1][Field::Loss] == 22);
}

TEST_CASE("lines that cannot be read are counted, and the first is named") {
  const RunFiles run = read("{\"step\": 1, \"loss\": 1}\nno JSON\n{\"loss\": 1}\n{\"step\": 1.5}\n{\"step\": 2, \"lo");
  CHECK(run.steps.size() == 1);
  REQUIRE(run.problems.size() == 1);
  CHECK(run.problems[0].starts_with("4 lines could not be read: metrics.jsonl:2"));
  CHECK(read("{\"step\": -1}\n{\"step\": 1e300}\n{\"step\": \"nan\"}\n[]\n").problems[0].starts_with("4 lines"));
}

TEST_CASE("an empty file is a run without steps; a folder without one is an error with a cure") {
  CHECK(read("").steps.empty());
  const testing::TemporaryFolder folder;
  CHECK_THROWS_WITH_AS(read_run(folder.path()), doctest::Contains("/metrics.jsonl: is no file"), UserError);
  CHECK_THROWS_WITH_AS(read_run(folder / "none"), doctest::Contains("expected the folder of a run"), UserError);
}

TEST_CASE("run.jsonl is read back: facts, planned memory, configuration") {
  RunFacts facts;
  facts.config.training.steps = 77;
  facts.config.job.description = "a # \"b\" = c";
  facts.last_step = 5;
  facts.data_ranks = 4;
  facts.memory.gathered = 1024;
  facts.mesh = "[dp_shard=4]";
  const RunFiles run = read("", json_line(facts) + "\n");
  CHECK(run.problems.empty());
  REQUIRE(run.starts.size() == 1);
  const RunStart& start = run.starts[0];
  CHECK(start.first_step == 6);
  CHECK(start.data_ranks == 4);
  CHECK(std::ranges::find(start.planned_memory, std::pair<std::string, double>("gathered", 1024)) !=
        start.planned_memory.end());
  const auto has = [](const Pairs& pairs, const std::string& key, const std::string& value) {
    return std::ranges::find(pairs, std::pair(key, value)) != pairs.end();
  };
  CHECK(has(start.facts, "mesh", "[dp_shard=4]"));
  CHECK(has(start.config, "training.steps", "77"));
  CHECK(has(start.config, "job.description", "\"a # \\\"b\\\" = c\""));
}

TEST_CASE("a file that was moved aside is read by its own name, with the run.jsonl of its number") {
  const testing::TemporaryFolder folder;
  const std::string path = folder.write("metrics.1.jsonl", "{\"step\": 1, \"loss\": 1}\n");
  folder.write("run.1.jsonl", "{\"first_step\": 1, \"mesh\": \"[dp=1]\"}\n");
  CHECK(read_run(path).steps.size() == 1);
  CHECK(read_run(path).starts.size() == 1);
}

}  // namespace sfsdp::train::run_files_test
