// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/run_log.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "sfsdp/base/strings.h"
#include "sfsdp/testing/temporary_folder.h"
#include "sfsdp/train/run_facts.h"

namespace sfsdp::train::run_log_test {
namespace {

// Two data ranks that train on 1,000 tokens a step.
RunFacts example_facts() {
  RunFacts facts;
  facts.config.training.seq_len = 100;
  facts.config.training.steps = 20;
  facts.global_batch = 10;
  facts.data_ranks = facts.world_size = 2;
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
        "step:  3  loss:  5.00000  grad_norm:  0.0000  memory:  1.00GiB(25.00%)  tps: 200  tflops: 0.00  mfu: 5.00%  "
        "eta: "
        "0:00:43\n");  // steps 2 and 3 took 2.5 s each, 17 are left
}

TEST_CASE("metrics.jsonl has a line for every step, with that step's own tps") {
  const testing::TemporaryFolder folder;
  std::ostringstream out;
  double clock = 0;
  RunLog log({.log_freq = 10, .dump_folder = folder.path(), .now = [&] { return clock; }}, out);
  log.start(example_facts());
  clock = 0.5;
  log.step(measured(1, 0.5, 1));
  clock = 2.75;
  log.step(measured(2, 0.25, 1));
  std::ifstream file(folder / "metrics.jsonl");
  std::string line;
  std::getline(file, line);
  CHECK(nlohmann::json::parse(line)["tps"] == 1000);  // 1,000 tokens on two ranks in 0.5 s
  std::getline(file, line);
  CHECK(nlohmann::json::parse(line)["tps"] == 2000);
  CHECK(nlohmann::json::parse(line)["between_s"] == 2);  // it began 0.25 s before it ended
}

TEST_CASE("a validation has a line of its own, and its time is not that of steps") {
  std::ostringstream out;
  double clock = 0;
  RunLog log({.log_freq = 2, .now = [&] { return clock; }}, out);
  log.start(example_facts());
  log.step(measured(1, 1, 1));
  out.str("");
  clock = 4;
  log.validation({.step = 1, .loss = 2, .tokens = 600, .seconds = 3, .memory_gib = 1});
  clock = 6;
  log.step(measured(2, 1, 1));
  const auto lines = split(out.str(), '\n');
  CHECK(lines[0] == "validate step:  1  loss:  2.0000  memory:  1.00GiB(25.00%)  tps: 100");
  CHECK(lines[1].find("tps: 167  ") != std::string::npos);  // 1,000 tokens on two ranks in 3 s
}

TEST_CASE("a live line stands on the terminal after each step and makes room for every other line") {
  std::ostringstream out;  // console and terminal are one, as mostly
  double clock = 0;
  RunLog log({.terminal = &out, .columns = [] { return 80; }, .log_freq = 3, .now = [&] { return clock; }}, out);
  log.start(example_facts());
  clock = 1;
  log.step(measured(1, 1, 1));
  out.str("");
  clock = 2;
  log.step(measured(2, 0.5, 1));
  CHECK(out.str() == "\rstep 2/20  loss 5.0000  tps 1,000  eta 0:00:18\033[K");
  out.str("");
  log.notice("a notice");
  CHECK(out.str() == "\r\033[Ka notice\n");
}

TEST_CASE("a run that goes on writes no step twice; a new one leaves the earlier run's files beside its own") {
  const testing::TemporaryFolder folder;
  const auto run = [&](int64_t last_step, int64_t steps) {
    std::ostringstream out;
    double clock = 0;
    RunLog log({.dump_folder = folder.path(), .now = [&] { return ++clock; }}, out);
    RunFacts facts = example_facts();
    facts.last_step = last_step;
    log.start(facts);
    for (int64_t k = last_step + 1; k <= steps; ++k) log.step(measured(k, 1, 1));
    return out.str();
  };
  const auto lines_of = [&](const std::string& name) {
    std::vector<nlohmann::json> lines;
    std::ifstream file(folder / name);
    for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  };
  run(0, 7);
  run(4, 9);
  std::vector<int64_t> steps;
  for (const auto& line : lines_of("metrics.jsonl")) steps.push_back(line["step"]);
  CHECK(steps == std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9});
  REQUIRE(lines_of("run.jsonl").size() == 2);
  CHECK(lines_of("run.jsonl")[1]["first_step"] == 5);
  CHECK(run(0, 2).find("/metrics.jsonl of an earlier run is now ") != std::string::npos);
  CHECK(lines_of("metrics.jsonl").size() == 2);
  CHECK(lines_of("metrics.1.jsonl").size() == 9);
  CHECK(lines_of("run.1.jsonl").size() == 2);
}

TEST_CASE("TensorBoard has TorchTitan's tags, at the steps of the console, in a folder of the minute and the rank") {
  const testing::TemporaryFolder folder;
  std::ostringstream out;
  double clock = 0;
  RunLog log(
      {.log_freq = 2, .tensorboard_folder = folder / "tb", .tensorboard_rank = 3, .now = [&] { return ++clock; }}, out);
  RunFacts facts = example_facts();
  facts.start_seconds = 1700000000;
  log.start(facts);
  for (int64_t k = 1; k <= 3; ++k) log.step(measured(k, 1, 1));
  log.validation({.step = 2, .loss = 2, .tokens = 600, .seconds = 3});
  const std::string run = folder / ("tb/" + minute_text(1700000000) + "/rank_3");
  std::string bytes;
  for (const auto& entry : std::filesystem::directory_iterator(run)) {
    std::ifstream file(entry.path(), std::ios::binary);
    bytes.append(std::istreambuf_iterator<char>(file), {});
  }
  const auto count = [&](const std::string& tag) {
    size_t found = 0;
    for (size_t at = bytes.find(tag); at != std::string::npos; at = bytes.find(tag, at + 1)) ++found;
    return found;
  };
  for (const char* tag :
       {"loss_metrics/global_avg_loss", "loss_metrics/global_max_loss", "grad_norm", "\x0fthroughput(tps)", "tflops",
        "mfu(%)", "time_metrics/end_to_end(s)", "time_metrics/data_loading(s)", "time_metrics/data_loading(%)",
        "\x16memory/max_active(GiB)", "\x14memory/max_active(%)", "\x18memory/max_reserved(GiB)",
        "\x16memory/max_reserved(%)", "memory/num_alloc_retries", "memory/num_ooms", "n_tokens_seen", "\x02lr"}) {
    CAPTURE(tag);
    CHECK(count(tag) == 2);  // steps 1 and 2
  }
  CHECK(count("validation_metrics/loss") == 1);
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

}  // namespace sfsdp::train::run_log_test
