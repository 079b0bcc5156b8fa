// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/testing/expect_pass.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/line_diff.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/testing/interp/interpreter.h"

namespace sfsdp::testing {
namespace {

using ir::Graph;
using ir::interp::Array;

std::vector<std::string> split_lines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
  return lines;
}

Graph read(std::string_view text, const std::string& name) {
  ir::ParseResult parsed = ir::parse(dedent(text), name);
  if (!parsed.ok()) throw UserError(ir::to_string(parsed.diagnostics));
  ir::verify_or_throw(parsed.graph, &parsed.locations);
  return std::move(parsed.graph);
}

bool same_bits(double a, double b) {
  // Any nan is as good as another: its bits are not part of what a graph means.
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b) || (std::isnan(a) && std::isnan(b));
}

std::string compare(const Array& before, const Array& after, double bound, const std::string& what) {
  if (before.shape != after.shape || before.dtype != after.dtype)
    return concat(what, " was ", before, ", is ", after, '\n');
  for (size_t i = 0; i < before.data.size(); ++i) {
    const double a = before.data[i], b = after.data[i];
    if (same_bits(a, b) || std::abs(a - b) <= bound) continue;
    return concat(what, " was ", before, ", is ", after, "\n  element ", i, " differs by ", std::abs(a - b),
                  ", allowed ", bound, '\n');
  }
  return "";
}

// In double without rounding to dtypes, only the order of sums is left to differ. Each number computed is off by at
// most half an ulp of the largest one, and no result can collect more such errors than numbers were computed.
double reorder_bound(const ir::interp::RunResult& a, const ir::interp::RunResult& b) {
  const double epsilon = std::numeric_limits<double>::epsilon();
  return epsilon * std::max(a.largest, b.largest) * static_cast<double>(std::max(a.numbers, b.numbers));
}

}  // namespace

std::string dedent(std::string_view text) {
  const std::vector<std::string> lines = split_lines(text);
  size_t indent = std::string::npos;
  for (const std::string& line : lines) indent = std::min(indent, line.find_first_not_of(' '));
  std::string result;
  for (const std::string& line : lines)
    if (line.find_first_not_of(' ') != std::string::npos) result += line.substr(indent) + "\n";
  return result;
}

std::string check_same_meaning(const Graph& before, const Graph& after, Agreement agreement) {
  const bool exact = agreement == Agreement::Bitwise;
  const ir::interp::RunOptions options{.rounding = exact ? ir::interp::Rounding::PerOp : ir::interp::Rounding::None};
  std::string problems;
  for (const uint64_t seed : {1u, 2u, 3u}) {
    const auto inputs = ir::interp::seeded_inputs(before, seed);
    const auto a = ir::interp::run(before, inputs, options), b = ir::interp::run(after, inputs, options);
    const double bound = exact ? 0 : reorder_bound(a, b);
    for (size_t rank = 0; rank < a.ranks.size(); ++rank) {
      const std::string where = concat("seed ", seed, ", ", before.micro_batches, " micro-batches, rank ", rank, ": ");
      if (a.ranks[rank].outputs.size() != b.ranks[rank].outputs.size()) return where + "another number of outputs";
      for (size_t i = 0; i < a.ranks[rank].outputs.size(); ++i)
        problems += compare(a.ranks[rank].outputs[i], b.ranks[rank].outputs[i], bound, concat(where, "output ", i));
      if (a.ranks[rank].carried.size() != b.ranks[rank].carried.size()) return where + "another number of carries";
      for (const auto& [name, value] : a.ranks[rank].carried) {
        const auto found = b.ranks[rank].carried.find(name);
        problems += found == b.ranks[rank].carried.end() ? concat(where, name, " is no longer carried\n")
                                                         : compare(value, found->second, bound, where + name);
      }
    }
  }
  return problems;
}

std::string check_pass(std::string_view passes, std::string_view before, std::string_view after) try {
  const Graph original = read(before, "before");
  const std::string expected = ir::print(read(after, "after"));
  const auto calls = passes::parse_passes(passes);
  Graph graph = original.clone();
  const auto reports = passes::run_passes(graph, calls);  // verifies, and checks the bools against the text
  const std::string got = ir::print(graph);
  if (got != expected) return "the text differs:\n" + unified_diff(expected, got, {"expected", "got"});
  for (const auto& report : passes::run_passes(graph, calls))
    if (report.changed)
      return concat(report.name, " changes the graph again when run again:\n", unified_diff(got, ir::print(graph)));
  const bool exact =
      std::ranges::all_of(calls, [](const auto& call) { return call.info->exactness == passes::Exactness::Exact; });
  std::string problems;
  Graph repeated = original.clone();
  for (const int64_t micro_batches : {1, 2, 3}) {
    repeated.micro_batches = graph.micro_batches = micro_batches;
    problems += check_same_meaning(repeated, graph, exact ? Agreement::Bitwise : Agreement::UpToOrderOfSums);
  }
  return problems;
} catch (const std::exception& error) {
  return error.what();
}

void expect_pass(std::string_view passes, std::string_view before, std::string_view after) {
  const std::string problems = check_pass(passes, before, after);
  CHECK_MESSAGE(problems.empty(), passes, ": ", problems);
}

void expect_unchanged(std::string_view passes, std::string_view text) { expect_pass(passes, text, text); }

void expect_diagnostic(std::string_view text, std::string_view part) {
  ir::ParseResult parsed = ir::parse(dedent(text), "test.ir");
  std::vector<ir::Diagnostic> diagnostics = std::move(parsed.diagnostics);
  if (diagnostics.empty()) diagnostics = ir::verify(parsed.graph, &parsed.locations);
  const bool found = std::ranges::any_of(
      diagnostics, [&](const auto& diagnostic) { return concat(diagnostic).find(part) != std::string::npos; });
  CHECK_MESSAGE(found, "no diagnostic says \"", part, "\"; got: ", ir::to_string(diagnostics));
}

}  // namespace sfsdp::testing
