// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/metrics.h"

#include <doctest/doctest.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace sfsdp::train::metrics_test {

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
          .data_s = 0.0625,
          .forward_backward_s = 0.125,
          .optimizer_s = 0.03125,
          .comm_exposed_s = 0.015625,
          .between_s = 0.5,
          .tps = 12345.6,
          .memory_gib = 1.5,
          .memory_state_gib = 0.5,
          .memory_percent = 1.876,
          .tflops = 1234.567,
          .mfu_percent = 35.128};
}

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
  CHECK(json.size() == 14);
  CHECK(json["step"] == 1);
  CHECK(json["loss"].get<double>() == metrics.loss);
  CHECK(json["grad_norm"].get<double>() == metrics.grad_norm);
  CHECK(json["lr"].get<double>() == metrics.lr);
  CHECK(json["tokens"] == 16384);
  CHECK(json["step_time_s"] == 0.25);
  CHECK(json["tps"].get<double>() == 12345.6);
  CHECK(json["memory_gib"] == 1.5);
  CHECK(json["memory_state_gib"] == 0.5);
  CHECK(json["data_s"] == 0.0625);
  CHECK(json["forward_backward_s"] == 0.125);
  CHECK(json["optimizer_s"] == 0.03125);
  CHECK(json["comm_exposed_s"] == 0.015625);
  CHECK(json["between_s"] == 0.5);
}

TEST_CASE("the largest loss of a rank stands only in lines of steps that asked for it") {
  StepMetrics metrics = example();
  CHECK_FALSE(nlohmann::json::parse(json_line(metrics)).contains("max_loss"));
  metrics.max_loss = 8.5;
  CHECK(nlohmann::json::parse(json_line(metrics))["max_loss"] == 8.5);
}

TEST_CASE("a validation is a line of its own, with the step that it comes after") {
  const auto json = nlohmann::json::parse(
      json_line(ValidationMetrics{.step = 10, .loss = 1.0 / 3, .tokens = 4096, .seconds = 0.5, .tps = 2048}));
  CHECK(json.size() == 6);
  CHECK(json["step"] == 10);
  CHECK(json["validation_loss"].get<double>() == 1.0 / 3);
  CHECK(json["validation_tokens"] == 4096);
  CHECK(json["validation_s"] == 0.5);
  CHECK(json["validation_tps"] == 2048);
}

TEST_CASE("a loss that is no number leaves the line valid JSON") {
  StepMetrics metrics = example();
  metrics.loss = kNan;
  metrics.grad_norm = -kInf;
  const auto json = nlohmann::json::parse(json_line(metrics));
  CHECK(json["loss"] == "nan");
  CHECK(json["grad_norm"] == "-inf");
}

// By hand from TorchTitan's f"validate step: {step:2}  loss: {loss:7.4f}  memory: {gib:5.2f}GiB({percent:.2f}%)  tps: {round(tps):,}".
TEST_CASE("the line of a validation is TorchTitan's") {
  const ValidationMetrics metrics = {
      .step = 10, .loss = 5.12341, .tps = 12345.4, .memory_gib = 1.5, .memory_percent = 1.876};
  CHECK(console_line(metrics, Color::Off) == "validate step: 10  loss:  5.1234  memory:  1.50GiB(1.88%)  tps: 12,345");
  CHECK(console_line(metrics, Color::On).starts_with("\033[33mvalidate step: 10  \033[32mloss:"));
}

TEST_CASE("the time that is left stands after all that TorchTitan prints") {
  StepMetrics metrics = example();
  metrics.eta_s = 3723;
  CHECK(console_line(metrics, Color::Off) == console_line(example(), Color::Off) + "  eta: 1:02:03");
  metrics.mfu_percent.reset();
  CHECK(console_line(metrics, Color::Off).ends_with("tflops: 1,234.57  eta: 1:02:03"));
}

TEST_CASE("a duration is hours, minutes and seconds, with days from one on, rounded up") {
  CHECK(duration_text(0) == "0:00:00");
  CHECK(duration_text(0.01) == "0:00:01");
  CHECK(duration_text(3599.5) == "1:00:00");
  CHECK(duration_text(86399) == "23:59:59");
  CHECK(duration_text(86400) == "1d 00:00:00");
  CHECK(duration_text(30 * 86400.0 + 3661) == "30d 01:01:01");
  CHECK(duration_text(kInf) == "?");
  CHECK(duration_text(kNan) == "?");
}

}  // namespace sfsdp::train::metrics_test
