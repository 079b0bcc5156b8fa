// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/pass_manager.h"

#include <algorithm>
#include <optional>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/by_rank.h"
#include "sfsdp/ir/loops.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/passes/registry.h"

namespace sfsdp::passes {
namespace {

struct Counts {
  int64_t ops = 0, collectives = 0, bytes = 0;
};

Counts count(const ir::Graph& graph) {
  Counts counts;
  counts.ops = static_cast<int64_t>(graph.ops().size());
  for (const auto& op : graph.ops()) {
    if (!ir::is_collective(*op)) continue;
    ++counts.collectives;
    counts.bytes += ir::collective_bytes(*op);
  }
  return counts;
}

void report(const Counts& counts, const std::string& when, Metrics& metrics) {
  metrics.add("ops_" + when, counts.ops);
  metrics.add("collectives_" + when, counts.collectives);
  metrics.add("collective_bytes_" + when, counts.bytes);
}

void check_verified(const ir::Graph& graph, const std::string& name) {
  const std::vector<ir::Diagnostic> diagnostics = ir::verify(graph);
  SFSDP_CHECK(diagnostics.empty(), "the graph is broken after pass ", name, '\n', ir::to_string(diagnostics));
}

void check_knows_loops(const ir::Graph& graph, const PassInfo& pass) {
  if (pass.knows_loops) return;
  if (const auto loops = ir::loops_of(graph); !loops.empty())
    throw UserError(concat("pass ", pass.name, " knows no loops, and the graph has ", ir::name_of(*loops[0].begin),
                           "\n  expected a graph without loop and when; the pass runs before they are made"));
}

}  // namespace

std::vector<PassReport> run_passes(ir::Graph& graph, std::span<const PassCall> calls, const RunOptions& options) {
  for (const auto& op : graph.ops())
    if (ir::is_by_rank(*op))
      throw UserError(concat("no pass knows ops that differ by rank, and the graph has ", ir::name_of(*op),
                             "\n  expected a graph without counted=, row_counts= and affine offsets"));
  std::vector<PassReport> reports;
  std::string text;  // of the graph as it is, where that is known
  if (options.checks == Checks::EveryPass) ir::verify_or_throw(graph);
  if (options.observer) options.observer("start", graph);
  std::optional<StepFigures> figures;
  if (options.measure) figures = options.measure(graph);
  Counts counts = count(graph);
  for (const PassCall& call : calls) {
    check_knows_loops(graph, *call.info);
    PassContext context;
    context.layout = options.layout;
    report(counts, "before", context.metrics);
    const bool checked = options.checks == Checks::EveryPass || is_registered(*call.info);
    if (checked && text.empty()) {
      ir::verify_or_throw(graph);
      text = ir::print(graph);
    }
    const bool changed = call.info->run(graph, call.options, context);
    std::string after;
    if (checked) {
      check_verified(graph, call.info->name);
      after = ir::print(graph);
      SFSDP_CHECK(changed == (text != after), "pass ", call.info->name, changed ? " says it changed" : " changed",
                  " the graph, but ", changed ? "did not" : "says it did not", '\n', after);
    }
    if (changed) counts = count(graph);
    report(counts, "after", context.metrics);
    const auto before = figures;
    if (options.measure && changed) figures = options.measure(graph);
    reports.push_back({call.info->name, changed, std::move(context.metrics), before, figures});
    text = std::move(after);
    if (options.observer) options.observer(call.info->name, graph);
  }
  return reports;
}

}  // namespace sfsdp::passes
