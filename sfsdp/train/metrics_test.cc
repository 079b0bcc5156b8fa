// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/metrics.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/testing/temporary_folder.h"

namespace sfsdp::train {

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

StepMetrics example() {
  return {.step = 1,
          .loss = 8.0491,
          .grad_norm = 1.5,
          .lr = 4e-4,
          .tokens = 16384,
          .step_time_s = 0.25,
          .tps = 12345.6,
          .memory_gib = 1.5,
          .memory_percent = 1.876,
          .tflops = 1234.567,
          .mfu_percent = 35.128};
}

std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

struct ScratchFile {
  testing::TemporaryFolder folder;
  std::string path = folder / "outputs/metrics.jsonl";
};

}  // namespace

// Expected text: Python's f"step: {1:2}  loss: {8.0491:8.5f}  grad_norm: ..." with these numbers.
TEST_CASE("the console line is TorchTitan's, character by character") {
  CHECK(console_line(example(), Color::Off) ==
        "step:  1  loss:  8.04910  grad_norm:  1.5000  memory:  1.50GiB(1.88%)  tps: 12,346  tflops: 1,234.57  "
        "mfu: 35.13%");
  StepMetrics large = example();
  large.step = 12345;
  large.loss = 123.456789;
  large.memory_gib = 135.2;
  large.tps = 0.4;
  CHECK(console_line(large, Color::Off)
            .starts_with("step: 12345  loss: 123.45679  grad_norm:  1.5000  memory: 135.20GiB(1.88%)  tps: 0  tflops"));
}

TEST_CASE("there is no mfu where the device's peak is unknown") {
  StepMetrics metrics = example();
  metrics.mfu_percent.reset();
  CHECK(console_line(metrics, Color::Off).ends_with("tflops: 1,234.57"));
}

TEST_CASE("nan prints as Python prints it, without a sign") {
  StepMetrics metrics = example();
  metrics.loss = -kNan;
  metrics.grad_norm = kInf;
  CHECK(console_line(metrics, Color::Off).starts_with("step:  1  loss:      nan  grad_norm:     inf  memory"));
}

TEST_CASE("colours only wrap the fields") {
  std::string colored = console_line(example(), Color::On);
  CHECK(colored.starts_with("\033[31mstep:  1  \033[32mloss:  8.04910  \033[38;2;180;60;0mgrad_norm"));
  CHECK(colored.ends_with("\033[35mmfu: 35.13%\033[39m"));
  for (size_t at = colored.find('\033'); at != std::string::npos; at = colored.find('\033'))
    colored.erase(at, colored.find('m', at) - at + 1);
  CHECK(colored == console_line(example(), Color::Off));
}

// TorchTitan, models/llama3: get_nparams_and_flops of its flavors.
TEST_CASE("flops per token are those of TorchTitan's Llama 3 table") {
  CHECK(flops_per_token({6163712, 2048 * 256, 6, 16, 256}, 2048) == 71585280);
  CHECK(flops_per_token({8030261248, 128256LL * 4096, 32, 32, 4096}, 8192) == 57914449920);
  CHECK(flops_per_token({70553706496, 128256LL * 8192, 80, 64, 8192}, 8192) == 481442709504);
  CHECK(flops_per_token({405853388800, 128256LL * 16384, 126, 128, 16384}, 8192) == 2625449459712);
}

TEST_CASE("tflops and mfu follow from tokens per second") {
  StepMetrics metrics;
  metrics.tps = 1000;
  set_flops(metrics, 2'000'000'000, 8e12);
  CHECK(metrics.tflops == doctest::Approx(2));
  CHECK(*metrics.mfu_percent == doctest::Approx(25));
  set_flops(metrics, 2'000'000'000, std::nullopt);
  CHECK_FALSE(metrics.mfu_percent);
}

// conventions.md: "`loss`, `grad_norm` and `lr` of a line are all of that one step. Print at least 9 significant digits."
TEST_CASE("a line of JSON gives every number back exactly") {
  StepMetrics metrics = example();
  metrics.loss = 8.0 + 1.0 / 3;
  metrics.grad_norm = 1e-7 / 3;
  metrics.lr = 2e-3 / 7;
  const auto json = nlohmann::json::parse(json_line(metrics));
  CHECK(json.size() == 8);
  CHECK(json["step"] == 1);
  CHECK(json["loss"].get<double>() == metrics.loss);
  CHECK(json["grad_norm"].get<double>() == metrics.grad_norm);
  CHECK(json["lr"].get<double>() == metrics.lr);
  CHECK(json["tokens"] == 16384);
  CHECK(json["step_time_s"] == 0.25);
  CHECK(json["tps"].get<double>() == 12345.6);
  CHECK(json["memory_gib"] == 1.5);
}

TEST_CASE("a loss that is no number leaves the line valid JSON") {
  StepMetrics metrics = example();
  metrics.loss = kNan;
  metrics.grad_norm = -kInf;
  const auto json = nlohmann::json::parse(json_line(metrics));
  CHECK(json["loss"] == "nan");
  CHECK(json["grad_norm"] == "-inf");
}

TEST_CASE("metrics.jsonl is appended to, and every line is there before the file is closed") {
  const ScratchFile scratch;
  {
    MetricsFile file(scratch.path);
    file.write(example());
    CHECK(read_file(scratch.path) == json_line(example()) + "\n");
  }
  MetricsFile(scratch.path).write(example());
  CHECK(split(read_file(scratch.path), '\n').size() == 3);
}

TEST_CASE("a half line that a crash left does not spoil the next one") {
  const ScratchFile scratch;
  MetricsFile(scratch.path).write(example());
  std::ofstream(scratch.path, std::ios::app) << "{\"step\": 2, \"lo";
  MetricsFile(scratch.path).write(example());
  const auto lines = split(read_file(scratch.path), '\n');
  REQUIRE(lines.size() == 4);
  CHECK(lines[1] == "{\"step\": 2, \"lo");
  CHECK(lines[2] == json_line(example()));
}

TEST_CASE("a metrics file that cannot be written names itself and the cure") {
  const ScratchFile scratch;
  std::filesystem::create_directories(scratch.path);  // a folder stands where the file should
  CHECK_THROWS_WITH_AS(MetricsFile{scratch.path}, doctest::Contains("set --job.dump_folder"), UserError);
}

}  // namespace sfsdp::train
