// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/pass_report.h"

#include <algorithm>
#include <array>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::passes {
namespace {

constexpr std::array<const char*, 3> kCounted = {"ops", "collectives", "collective_bytes"};

// "12" where nothing changed, else "12 -> 9".
std::string before_and_after(double before, double after, int decimals) {
  const std::string first = with_commas(before, decimals), second = with_commas(after, decimals);
  return first == second ? first : first + " -> " + second;
}

std::string counted(const PassReport& report, const std::string& what, double unit, int decimals) {
  return before_and_after(static_cast<double>(report.metrics.get(what + "_before")) / unit,
                          static_cast<double>(report.metrics.get(what + "_after")) / unit, decimals);
}

// Step and exposed communication in ms, peak in GiB; empty where nothing is predicted.
std::array<std::string, 3> predicted(const PassReport& report) {
  if (!report.before || !report.after) return {};
  const StepFigures &a = *report.before, &b = *report.after;
  constexpr double kGiB = 1 << 30;
  return {before_and_after(a.seconds * 1e3, b.seconds * 1e3, 2), before_and_after(a.exposed * 1e3, b.exposed * 1e3, 2),
          before_and_after(static_cast<double>(a.peak_bytes) / kGiB, static_cast<double>(b.peak_bytes) / kGiB, 2)};
}

bool is_own(const std::string& metric) {
  return std::ranges::none_of(
      kCounted, [&](const std::string& what) { return metric == what + "_before" || metric == what + "_after"; });
}

std::string own_metrics(const PassReport& report) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : report.metrics.counts())
    if (is_own(name)) parts.push_back(concat(name, ' ', with_commas(value)));
  if (parts.empty()) return report.changed ? "changed" : "nothing to do";
  return join(parts, ", ");
}

}  // namespace

std::string to_string(const PassReport& report) {
  std::string text = concat(report.name, ": ", report.changed ? "changed" : "unchanged");
  const char* separator = "; ";
  for (const auto& [name, value] : report.metrics.counts()) {
    text += concat(separator, name, ' ', value);
    separator = ", ";
  }
  if (report.before) {
    const auto [step, exposed, peak] = predicted(report);
    text += concat("; step ms ", step, ", exposed ms ", exposed, ", peak GiB ", peak);
  }
  return text;
}

std::string table(std::span<const PassReport> reports) {
  std::vector<std::array<std::string, 8>> rows = {
      {"pass", "ops", "collectives", "their MiB", "step ms", "exposed ms", "peak GiB", "what it did"}};
  for (const PassReport& report : reports) {
    const auto [step, exposed, peak] = predicted(report);
    rows.push_back({report.name, counted(report, kCounted[0], 1, 0), counted(report, kCounted[1], 1, 0),
                    counted(report, kCounted[2], 1 << 20, 1), step, exposed, peak, own_metrics(report)});
  }
  const bool predicts = std::ranges::any_of(reports, [](const PassReport& r) { return r.before.has_value(); });
  const auto is_shown = [&](size_t column) { return predicts || column < 4 || column == 7; };
  std::array<size_t, 8> widths = {};
  for (const auto& row : rows)
    for (size_t c = 0; c + 1 < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  std::string text;
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) {
      if (!is_shown(c)) continue;
      text += row[c] + (c + 1 < row.size() ? std::string(widths[c] - row[c].size() + 2, ' ') : "\n");
    }
  }
  return text;
}

}  // namespace sfsdp::passes
