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
std::string before_and_after(const PassReport& report, const std::string& what, double unit, int decimals) {
  const auto text = [&](const char* when) {
    return with_commas(static_cast<double>(report.metrics.get(what + when)) / unit, decimals);
  };
  const std::string before = text("_before"), after = text("_after");
  return before == after ? before : before + " -> " + after;
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
  return text;
}

std::string table(std::span<const PassReport> reports) {
  std::vector<std::array<std::string, 5>> rows = {{"pass", "ops", "collectives", "their MiB", "what it did"}};
  for (const PassReport& report : reports)
    rows.push_back({report.name, before_and_after(report, kCounted[0], 1, 0),
                    before_and_after(report, kCounted[1], 1, 0), before_and_after(report, kCounted[2], 1 << 20, 1),
                    own_metrics(report)});
  std::array<size_t, 5> widths = {};
  for (const auto& row : rows)
    for (size_t c = 0; c + 1 < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  std::string text;
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c)
      text += row[c] + (c + 1 < row.size() ? std::string(widths[c] - row[c].size() + 2, ' ') : "\n");
  }
  return text;
}

}  // namespace sfsdp::passes
