// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/compare_traces.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <ostream>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/json.h"

namespace sfsdp::tools {
namespace {

using Key = std::pair<std::string, std::string>;  // section, module

constexpr size_t kMostShown = 20;

std::string text_of(const JsonValue* value) {
  const auto* text = value ? value->as<std::string>() : nullptr;
  return text ? *text : "";
}
std::optional<double> number_in(const JsonValue* value) {
  if (!value) return std::nullopt;
  if (const auto* n = value->as<uint64_t>()) return static_cast<double>(*n);
  if (const auto* n = value->as<int64_t>()) return static_cast<double>(*n);
  if (const auto* n = value->as<double>()) return *n;
  return std::nullopt;
}

std::string ms_of(double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.3f", value);
  return text.data();
}
std::string change(double from, double to) {
  if (from <= 0) return "";
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), " (%+.1f %%)", 100 * (to / from - 1));
  return text.data();
}

std::string read_trace(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in)
    throw UserError(
        concat(path, ": cannot read\n  expected a trace of simulate --trace, or of profiling.enable_profiling"));
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

double TraceTimes::kernels_ms() const {
  double sum = 0;
  for (const Part& part : parts) sum += part.ms;
  return sum;
}

// Lane 0 has kernels, on which starts and waits stand too; a measured trace has a lane of steps besides.
TraceTimes times_of_trace(std::string_view json, const std::string& file) {
  const JsonValue document = parse_json(json, file);
  const JsonValue* found = document.find("traceEvents");
  const auto* events = found ? found->as<JsonArray>() : nullptr;
  if (!events)
    throw UserError(
        concat(file, ": no traceEvents\n  expected a trace of simulate --trace, or of profiling.enable_profiling"));
  std::map<uint64_t, std::string> lanes;
  for (const JsonValue& event : *events)
    if (text_of(event.find("name")) == "thread_name")
      if (const auto tid = number_in(event.find("tid"))) {
        const JsonValue* args = event.find("args");
        lanes[static_cast<uint64_t>(*tid)] = args ? text_of(args->find("name")) : "";
      }
  if (!lanes.contains(0) || lanes[0] != "compute")
    throw UserError(concat(file, ": lane 0 is ", lanes.contains(0) ? lanes[0] : "not there",
                           "\n  expected compute, of simulate --trace or of profiling.enable_profiling"));
  const auto lane_of_steps = std::ranges::find(lanes, "steps", [](const auto& lane) { return lane.second; });
  const bool is_measured = lane_of_steps != lanes.end();
  std::map<Key, double> parts;
  TraceTimes times;
  int64_t steps = 0;
  for (const JsonValue& event : *events) {
    const auto tid = number_in(event.find("tid")), us = number_in(event.find("dur"));
    if (text_of(event.find("ph")) != "X" || !tid || !us) continue;
    const std::string name = text_of(event.find("name")), section = text_of(event.find("cat"));
    const JsonValue* args = event.find("args");
    const std::string module = args ? text_of(args->find("module")) : "";
    if (is_measured && *tid == static_cast<double>(lane_of_steps->first))
      ++steps;
    else if (*tid == 0 && (name.starts_with("start ") || name.starts_with("wait for ")))
      times.communication_ms += *us / 1e3;
    else if (*tid == 0)
      parts[{section, module}] += *us / 1e3;
  }
  if (is_measured && steps == 0) throw UserError(concat(file, ": no step in it\n  expected one that has ended"));
  const double share = is_measured ? 1.0 / static_cast<double>(steps) : 1.0;
  times.communication_ms *= share;
  for (const auto& [key, value] : parts) times.parts.push_back({key.first, key.second, value * share});
  return times;
}

void print_comparison(const TraceTimes& predicted, const TraceTimes& measured, size_t most, std::ostream& out) {
  const auto line = [&](const std::string& what, double from, double to) {
    out << what << ": " << ms_of(from) << " ms predicted, " << ms_of(to) << " measured" << change(from, to) << "\n";
  };
  line("A step", predicted.kernels_ms() + predicted.communication_ms,
       measured.kernels_ms() + measured.communication_ms);
  line("  kernels", predicted.kernels_ms(), measured.kernels_ms());
  line("  communication that nothing hides", predicted.communication_ms, measured.communication_ms);
  std::map<std::string, std::pair<double, double>> sections;
  std::map<Key, std::pair<double, double>> parts;
  for (const auto& part : predicted.parts) {
    sections[part.section].first += part.ms;
    parts[{part.section, part.module}].first += part.ms;
  }
  for (const auto& part : measured.parts) {
    sections[part.section].second += part.ms;
    parts[{part.section, part.module}].second += part.ms;
  }
  for (const auto& [section, both] : sections) line("  " + section, both.first, both.second);
  std::vector<std::pair<Key, std::pair<double, double>>> rows(parts.begin(), parts.end());
  std::ranges::stable_sort(rows, [](const auto& a, const auto& b) {
    return std::abs(a.second.second - a.second.first) > std::abs(b.second.second - b.second.first);
  });
  if (rows.size() > most) rows.resize(most);
  out << "Where they part most:\n";
  for (const auto& [key, both] : rows)
    line(concat("  ", key.first, " ", key.second.empty() ? "(no module)" : key.second), both.first, both.second);
}

int run_compare_traces(const Request& request, std::ostream& out, std::ostream& /*err*/) {
  const std::string predicted = request.get("compare");
  if (request.own.operands.empty())
    throw UserError("inspect --compare takes two traces\n  expected --compare PREDICTED MEASURED");
  const std::string& measured = request.own.operands[0];
  print_comparison(times_of_trace(read_trace(predicted), predicted), times_of_trace(read_trace(measured), measured),
                   kMostShown, out);
  return 0;
}

}  // namespace sfsdp::tools
