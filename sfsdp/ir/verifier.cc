// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/verifier.h"

#include <algorithm>
#include <array>
#include <map>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/attribute_kinds.h"
#include "sfsdp/ir/by_rank.h"
#include "sfsdp/ir/draws.h"
#include "sfsdp/ir/loops.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/shape_rules.h"
#include "sfsdp/ir/verify/checks.h"

namespace sfsdp::ir {

std::vector<Diagnostic> check_rule_of(const Graph& graph, const Op& op) {
  std::vector<Diagnostic> found = check_attribute_kinds(op);  // which the rule reads
  const OpRow* row = op.opcode.row();
  if (!row || !found.empty()) return found;
  RuleContext context(graph, op, found);
  try {
    row->rule(context);
  } catch (const RuleContext::Stop&) {  // it has reported
  }
  return found;
}

// Mesh and sizes first, as rules calculate with them; then op by op; then the ends; then what goes through operands.
std::vector<Diagnostic> verify(const Graph& graph, const SourceMap* locations) {
  using namespace checks;
  Report report(locations);
  Known known(graph, report);
  check_mesh(graph, report);
  check_sizes(graph, report);
  if (report.count() > 0) return report.take();
  for (const auto& op : graph.ops()) {
    report.at(op.get());
    const bool sound = check_form(*op, known, report);
    if (sound) {
      check_attributes(*op, report);
      check_flight(*op, known, report);
      check_sections(*op, report);
      check_rule(graph, *op, report);
      check_donations(*op, known, report);
    }
    check_types(graph, *op, report);
    check_bwd_of(*op, known, report);
    check_root(*op, known, report);
    known.define(*op, sound);
  }
  report.at(nullptr);
  check_outputs(graph, known, report);
  check_carries(graph, known, report);
  check_all_waited(known, report);
  if (report.count() > 0) return report.take();
  check_gradients(graph, report);
  for (const auto check : {check_draws, check_loops, check_counted})
    for (auto& [op, wrong] : check(graph)) {
      report.at(op);
      report(std::move(wrong.message), std::move(wrong.detail));
    }
  return report.take();
}

void verify_or_throw(const Graph& graph, const SourceMap* locations) {
  const std::vector<Diagnostic> diagnostics = verify(graph, locations);
  if (!diagnostics.empty()) throw UserError(to_string(diagnostics));
}

std::string compare_collectives(const Graph& mine, const Graph& other) {
  using Call = std::pair<std::string, std::string>;  // what must be equal; the name of the result, to find it
  std::map<std::string, std::array<std::vector<Call>, 2>> calls;  // by axes
  for (const size_t side : {0, 1})
    for (const auto& op : (side == 0 ? mine : other).ops())
      if (is_collective(*op))
        calls[join(axes_of(*op).value_or(std::vector<std::string>{}), ",")][side].emplace_back(call_text(*op),
                                                                                               op->result()->name());
  const auto text = [](const std::vector<Call>& of, size_t i) {
    return i < of.size() ? concat(of[i].first, " (%", of[i].second, ")") : "nothing";
  };
  for (const auto& [axes, both] : calls) {
    const auto& [a, b] = both;
    const auto found = std::ranges::mismatch(a, b, {}, &Call::first, &Call::first);
    const auto i = static_cast<size_t>(found.in1 - a.begin());
    if (i < std::max(a.size(), b.size()))
      return concat("call ", i + 1, " over ", axes, " is ", text(a, i), " in one program, ", text(b, i),
                    " in the other");
  }
  return "";
}

}  // namespace sfsdp::ir
