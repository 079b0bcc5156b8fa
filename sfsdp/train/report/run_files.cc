// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/report/run_files.h"

#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::train {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr std::array<std::string_view, kFields> kNames = {"loss",        "grad_norm",
                                                          "lr",          "tokens",
                                                          "step_time_s", "tps",
                                                          "memory_gib",  "memory_state_gib",
                                                          "data_s",      "forward_backward_s",
                                                          "optimizer_s", "comm_exposed_s",
                                                          "between_s"};

std::optional<double> number_of(std::string_view text) {
  if (text == "nan") return kNan;
  if (text == "inf") return kInf;
  if (text == "-inf") return -kInf;
  return std::nullopt;
}

using ReadLine = std::string (*)(const JsonObject& line, RunFiles& run);

double as_number(const JsonValue& value) {
  if (const auto number = as_real(value)) return *number;
  if (const auto* text = value.as<std::string>()) return number_of(*text).value_or(kNan);
  return kNan;
}

bool is_step(double value) {
  return value >= 0 && value < 9e15 && value == static_cast<double>(static_cast<int64_t>(value));
}

// One line of metrics.jsonl into `run`; "" or what is wrong with it.
std::string read_metrics_line(const JsonObject& line, RunFiles& run) {
  StepLine of_step;
  of_step.values.fill(kNan);
  double step = kNan, validation = 0;
  bool is_validation = false;
  for (const auto& [key, member] : line) {
    const double value = as_number(member);
    if (key == "step") step = value;
    if (key == "validation_loss") is_validation = true, validation = value;
    for (size_t f = 0; f < kFields; ++f)
      if (key == kNames[f]) of_step.values[f] = value;
  }
  if (!is_step(step)) return "has no step";
  of_step.step = static_cast<int64_t>(step);
  if (is_validation) {
    while (!run.validations.empty() && run.validations.back().step >= of_step.step) run.validations.pop_back();
    run.validations.push_back({of_step.step, validation});
  } else {
    while (!run.steps.empty() && run.steps.back().step >= of_step.step) run.steps.pop_back();
    run.steps.push_back(of_step);
  }
  return "";
}

// What is wrong with a line of JSON; "": nothing.
std::string read_line(const std::string& line, const std::string& place, RunFiles& run, ReadLine read) {
  try {
    const JsonValue document = parse_json(line, place);
    const auto* object = document.as<JsonObject>();
    const std::string complaint = object ? read(*object, run) : "expected an object";
    return complaint.empty() ? "" : concat(place, ": ", complaint);
  } catch (const UserError& error) {
    return error.what();
  }
}

// Calls `read` with each line that is not empty; keeps the first complaint, with its place, "metrics.jsonl:17".
void read_lines(const std::string& path, RunFiles& run, ReadLine read) {
  std::ifstream file(path, std::ios::binary);
  const std::string name = std::filesystem::path(path).filename().string();
  std::string line, first;
  int64_t number = 0, wrong = 0;
  while (std::getline(file, line)) {
    ++number;
    if (trim(line).empty()) continue;
    const std::string complaint = read_line(line, concat(name, ":", number), run, read);
    if (complaint.empty()) continue;
    if (wrong++ == 0) first = split(complaint, '\n')[0];
  }
  if (wrong > 0)
    run.problems.push_back(concat(wrong == 1 ? "One line" : concat(wrong, " lines"), " could not be read: ", first));
}

std::string read_start_line(const JsonObject& line, RunFiles& run) {
  RunStart start;
  for (const auto& [key, value] : line) {
    const double number = as_number(value);
    const auto* members = value.as<JsonObject>();
    if (key == "config" && value.as<std::string>()) {
      start.config = toml_pairs(*value.as<std::string>());
    } else if (key == "planned_memory_bytes" && members) {
      for (const auto& [kind, bytes] : *members) start.planned_memory.emplace_back(kind, as_number(bytes));
    } else {
      if (key == "first_step" && is_step(number)) start.first_step = static_cast<int64_t>(number);
      if (key == "data_ranks" && is_step(number)) start.data_ranks = static_cast<int64_t>(number);
      if (key == "flops_per_token") start.flops_per_token = number;
      if (key == "peak_flops") start.peak_flops = number;
      if (key == "device_bytes") start.device_bytes = number;
      const auto* text = value.as<std::string>();
      start.facts.emplace_back(key, text ? *text : describe(value));
    }
  }
  run.starts.push_back(std::move(start));
  return "";
}

}  // namespace

std::string_view to_string(Field field) { return kNames[static_cast<size_t>(field)]; }

std::vector<std::pair<std::string, std::string>> toml_pairs(std::string_view toml) {
  std::vector<std::pair<std::string, std::string>> pairs;
  std::string section;
  for (const std::string& raw : split(toml, '\n')) {
    const std::string line(trim(raw));
    if (line.starts_with('[') && line.ends_with(']')) {
      section = line.substr(1, line.size() - 2) + ".";
    } else if (const size_t equals = line.find('='); equals != std::string::npos && !line.starts_with('#')) {
      pairs.emplace_back(concat(section, trim(std::string_view(line).substr(0, equals))),
                         trim(std::string_view(line).substr(equals + 1)));
    }
  }
  return pairs;
}

RunFiles read_run(const std::string& path) {
  namespace fs = std::filesystem;
  RunFiles run;
  run.name = path;
  while (run.name.size() > 1 && run.name.ends_with('/')) run.name.pop_back();
  std::error_code error;
  const std::string metrics = fs::is_directory(run.name, error) ? run.name + "/metrics.jsonl" : run.name;
  if (!fs::is_regular_file(metrics, error))
    throw UserError(concat(metrics,
                           ": is no file\n  expected the folder of a run, job.dump_folder, which holds metrics.jsonl "
                           "unless metrics.enable_jsonl is off"));
  if (!std::ifstream(metrics)) throw UserError(metrics + ": cannot be read\n  expected a file that this user may read");
  read_lines(metrics, run, read_metrics_line);
  std::string start_name = fs::path(metrics).filename().string();
  if (start_name.starts_with("metrics")) start_name.replace(0, std::string_view("metrics").size(), "run");
  const std::string starts = (fs::path(metrics).parent_path() / start_name).string();
  if (starts != metrics && fs::is_regular_file(starts, error)) read_lines(starts, run, read_start_line);
  return run;
}

}  // namespace sfsdp::train
