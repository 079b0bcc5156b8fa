// SPDX-License-Identifier: BSD-3-Clause
// Reads what a run wrote: metrics.jsonl and run.jsonl. docs/metrics.md lists their fields.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sfsdp::train {

enum class Field : uint8_t {
  Loss,
  GradNorm,
  Lr,
  Tokens,
  StepTime,
  Tps,
  Memory,
  MemoryState,
  Data,
  ForwardBackward,
  Optimizer,
  Exposed,
  Between,
};
inline constexpr size_t kFields = 13;
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
// As metrics.jsonl spells it: "grad_norm".
std::string_view to_string(Field field);

// A line of a step. A field that the line lacks is a quiet nan, as "nan" is.
struct StepLine {
  int64_t step = 0;
  std::array<double, kFields> values = {};
  double operator[](Field field) const { return values[static_cast<size_t>(field)]; }
};

struct ValidationLine {
  int64_t step = 0;
  double loss = 0;
};

// A line of run.jsonl.
struct RunStart {
  int64_t first_step = 1;
  int64_t data_ranks = 1;
  double flops_per_token = 0, peak_flops = 0, device_bytes = 0;  // 0: not said
  std::vector<std::pair<std::string, double>> planned_memory;    // bytes by kind
  std::vector<std::pair<std::string, std::string>> facts;        // the other members, as text
  std::vector<std::pair<std::string, std::string>> config;       // "training.steps", "100"
};

struct RunFiles {
  std::string name;             // as it was given, without slashes at its end
  std::vector<StepLine> steps;  // ascending; of a step that stands there twice the later line
  std::vector<ValidationLine> validations;
  std::vector<RunStart> starts;
  std::vector<std::string> problems;  // what could not be read, a sentence each
};

//   path: a run's folder, or a file that was metrics.jsonl; its run.jsonl is looked for beside it
//   throws: UserError where there is no metrics.jsonl
RunFiles read_run(const std::string& path);

// Keys and values of a TOML text as to_toml writes it: "section.key" and the value's text.
std::vector<std::pair<std::string, std::string>> toml_pairs(std::string_view toml);

}  // namespace sfsdp::train
