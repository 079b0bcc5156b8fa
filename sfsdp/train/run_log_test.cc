// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/run_log.h"

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "sfsdp/base/strings.h"
#include "sfsdp/testing/temporary_folder.h"
#include "sfsdp/train/run_facts.h"

namespace sfsdp::train {
namespace {

// Two data ranks that train on 1,000 tokens a step.
RunFacts example_facts() {
  RunFacts facts;
  facts.config.training.seq_len = 100;
  facts.config.training.steps = 20;
  facts.global_batch = 10;
  facts.data_ranks = 2;
  facts.flops_per_token = 2'000'000;
  facts.peak_flops = 8e9;
  facts.device_bytes = int64_t{4} << 30;
  return facts;
}

StepMetrics measured(int64_t step, double seconds, double memory_gib) {
  StepMetrics metrics;
  metrics.step = step;
  metrics.loss = 5;
  metrics.tokens = step * 1000;
  metrics.step_time_s = seconds;
  metrics.memory_gib = memory_gib;
  return metrics;
}

}  // namespace

// trainer.py's should_log: step 1 and every log_freq.
TEST_CASE("a console line stands for step 1 and for every log_freq-th step") {
  std::ostringstream out;
  double clock = 0;
  RunLog log({.log_freq = 3, .now = [&] { return clock; }}, out);
  log.start(example_facts());
  out.str("");
  for (int64_t k = 1; k <= 7; ++k, clock += 1) log.step(measured(k, 1, 1));
  const auto lines = split(out.str(), '\n');
  REQUIRE(lines.size() == 4);
  CHECK(lines[0].starts_with("step:  1  "));
  CHECK(lines[1].starts_with("step:  3  "));
  CHECK(lines[2].starts_with("step:  6  "));
}

// By hand: steps 2 and 3 are 2,000 tokens on two ranks in 5 s of the wall, so 200 a second and rank; with 2e6 flops each
// 0.4 GFLOP/s of 8. The larger memory, 1 GiB of 4, was step 2's.
TEST_CASE("tps, tflops, mfu and memory of a line are those of all steps since the line before") {
  std::ostringstream out;
  double clock = 100;
  RunLog log({.log_freq = 3, .now = [&] { return clock; }}, out);
  log.start(example_facts());
  clock = 101;
  log.step(measured(1, 1, 3));
  out.str("");
  clock = 103;
  log.step(measured(2, 1, 1));
  clock = 106;
  log.step(measured(3, 1, 0.5));
  CHECK(out.str() ==
        "step:  3  loss:  5.00000  grad_norm:  0.0000  memory:  1.00GiB(25.00%)  tps: 200  tflops: 0.00  mfu: 5.00%\n");
}

TEST_CASE("metrics.jsonl has a line for every step, with that step's own tps") {
  const testing::TemporaryFolder folder;
  std::ostringstream out;
  double clock = 0;
  RunLog log({.log_freq = 10, .metrics_file = folder / "metrics.jsonl", .now = [&] { return clock; }}, out);
  log.start(example_facts());
  log.step(measured(1, 0.5, 1));
  log.step(measured(2, 0.25, 1));
  std::ifstream file(folder / "metrics.jsonl");
  std::string line;
  std::getline(file, line);
  CHECK(nlohmann::json::parse(line)["tps"] == 1000);  // 1,000 tokens on two ranks in 0.5 s
  std::getline(file, line);
  CHECK(nlohmann::json::parse(line)["tps"] == 2000);
}

TEST_CASE("a rank that does not print writes nothing to the console") {
  std::ostringstream out;
  RunLog log({.console = false, .log_freq = 1}, out);
  log.start(example_facts());
  log.notice("a notice");
  log.step(measured(1, 1, 1));
  log.completed(5);
  CHECK(out.str().empty());
}

TEST_CASE("the last line counts the steps of this start and averages their last ten losses") {
  std::ostringstream out;
  double clock = 0;
  RunLog log({.log_freq = 100, .now = [&] { return clock; }}, out);
  log.start(example_facts());
  for (int64_t k = 1; k <= 12; ++k, clock += 2) {
    StepMetrics metrics = measured(k, 2, 1);
    metrics.loss = static_cast<double>(k);
    log.step(metrics);
  }
  log.completed(8);  // 3 … 12 have a mean of 7.5; 500 tokens a rank in 2 s
  CHECK(out.str().ends_with(
      "Training completed: 12 steps in 24.0 s, median tps 250; mean loss of the last 10 steps 7.5000, unigram entropy "
      "of this rank's targets 8.0000 (0.5000 below)\n"));
}

}  // namespace sfsdp::train
