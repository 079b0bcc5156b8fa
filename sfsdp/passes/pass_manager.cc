// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/pass_manager.h"

#include <algorithm>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/verifier.h"

namespace sfsdp::passes {
namespace {

void count(const ir::Graph& graph, const std::string& when, Metrics& metrics) {
  metrics.add("ops_" + when, static_cast<int64_t>(graph.ops().size()));
  metrics.add("collectives_" + when,
              std::ranges::count_if(graph.ops(), [](const auto& op) { return ir::is_collective(*op); }));
}

void check_verified(const ir::Graph& graph, const std::string& name) {
  const std::vector<ir::Diagnostic> diagnostics = ir::verify(graph);
  SFSDP_CHECK(diagnostics.empty(), "the graph is broken after pass ", name, '\n', ir::to_string(diagnostics));
}

}  // namespace

std::vector<PassReport> run_passes(ir::Graph& graph, std::span<const PassCall> calls) {
  ir::verify_or_throw(graph);
  std::vector<PassReport> reports;
  std::string before = ir::print(graph);
  for (const PassCall& call : calls) {
    PassContext context;
    count(graph, "before", context.metrics);
    const bool changed = call.info->run(graph, call.options, context);
    check_verified(graph, call.info->name);
    std::string after = ir::print(graph);
    SFSDP_CHECK(changed == (before != after), "pass ", call.info->name, changed ? " says it changed" : " changed",
                " the graph, but ", changed ? "did not" : "says it did not", '\n', after);
    count(graph, "after", context.metrics);
    reports.push_back({call.info->name, changed, std::move(context.metrics)});
    before = std::move(after);
  }
  return reports;
}

std::string to_string(const PassReport& report) {
  std::string text = concat(report.name, ": ", report.changed ? "changed" : "unchanged");
  const char* separator = "; ";
  for (const auto& [name, value] : report.metrics.counts()) {
    text += concat(separator, name, ' ', value);
    separator = ", ";
  }
  return text;
}

}  // namespace sfsdp::passes
