// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/plan_summary.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string_view>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/loops.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::train {
namespace {

constexpr std::array<std::string_view, 7> kCollectives = {"all_gather", "reduce_scatter", "all_reduce", "broadcast",
                                                          "all_to_all", "all_to_all_v",   "permute"};

}  // namespace

PlanSummary summarise(const ir::Graph& graph) {
  PlanSummary summary;
  const std::vector<ir::Loop> loops = ir::loops_of(graph);  // how often their bodies run, memory says
  for (size_t i = 0; i < graph.ops().size(); ++i) {
    const auto& op = graph.ops()[i];
    ++summary.ops;
    if (op->is("param")) summary.parameter_bytes += op->result()->type().bytes();
    if (op->is("state")) summary.state_bytes += op->result()->type().bytes();
    const std::string kind(ir::collective_kind(*op));
    if (std::ranges::find(kCollectives, kind) == kCollectives.end() || ir::loop_around(loops, i)) continue;
    CollectiveSum& sum = summary.collectives[kind];
    const int64_t times = ir::is_repeated(*op) ? graph.micro_batches : 1;
    sum.count += times;
    sum.bytes += times * ir::collective_bytes(*op);
  }
  return summary;
}

std::string bytes_text(int64_t bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  char text[64];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", value, kUnits[unit]);
  return text;
}

std::string collectives_text(const PlanSummary& summary) {
  std::string text;
  for (const auto& [name, sum] : summary.collectives)
    text += concat(text.empty() ? "" : ", ", sum.count, " ", name, " (", bytes_text(sum.bytes), ")");
  return text.empty() ? "no collectives" : text;
}

}  // namespace sfsdp::train
