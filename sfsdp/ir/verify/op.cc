// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/attribute_kinds.h"
#include "sfsdp/ir/by_rank.h"
#include "sfsdp/ir/canonical/decompose.h"
#include "sfsdp/ir/lexer.h"
#include "sfsdp/ir/named_kernels.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/verifier.h"
#include "sfsdp/ir/verify/checks.h"

namespace sfsdp::ir::checks {
namespace {

std::string plural(size_t count, std::string_view noun) { return concat(count, ' ', noun, count == 1 ? "" : "s"); }

void report_unknown(const Op& op, Report& report) {
  std::vector<std::string> names;
  for (const OpRow& row : opset()) names.emplace_back(row.name);
  const std::string near = nearest(op.opcode, names);
  report(concat("unknown opcode ", op.opcode.empty() ? "\"\"" : op.opcode),
         near.empty() ? "expected a row of sfsdp/ir/opset.def, or aten.<name>[.<overload>]"
                      : concat("did you mean ", near, '?'));
}

// What sfsdp's own ops make, whose kernels are its own too; canonical ops are laid out as LibTorch does it, and attention over a
// part of the queries, or of the keys, as the whole one is, so that views of its results stay views.
bool is_made_contiguous(const Op& op) {
  const OpRow* row = op.opcode.row();
  return row && row->cost != CostClass::Attention && !is_aten(op.opcode) && row->alias == Alias::Fresh &&
         !op.is("constant", "sdpa_merge") && !is_canonical(op);
}

// On every axis a value is in one state only.
void check_axis(const Graph& graph, const Value& value, const std::string& axis, std::set<std::string>& seen,
                Report& report) {
  if (std::ranges::find(graph.mesh, axis, &MeshAxis::name) == graph.mesh.end())
    report(concat("the type of %", value.name(), " names axis ", axis, ", which the mesh lacks"),
           concat("expected an axis of the line `graph mesh [...]`, got ", value.type()));
  if (!seen.insert(axis).second)
    report(concat("the type of %", value.name(), " names axis ", axis, " twice"),
           concat("expected one state per axis, got ", value.type()));
}

void check_operands(const Op& op, const Known& known, Report& report) {
  for (const Value* operand : op.operands) {
    if (!operand) continue;
    if (!known.values.contains(operand))
      report(concat(name_of(op), " reads a value of another graph, or an erased one"),
             "expected a result of an op of this graph");
    else if (!known.storage[operand])
      report(concat(name_of(op), " reads %", operand->name(), " before it is defined"),
             concat("expected an op above; move ", name_of(*operand->producer()), " up"));
  }
  int end = 0;
  for (const Op::OperandList& list : op.operand_lists) {
    if (list.first < end || list.count < 0 || list.first + list.count > static_cast<int>(op.operands.size()))
      return report(concat(name_of(op), " has a broken operand list at ", list.first, ", count ", list.count),
                    "expected sorted, disjoint ranges of the operands");
    end = list.first + list.count;
  }
}

void check_arity(const Op& op, Report& report) {
  const OpRow* row = op.opcode.row();
  if (!row) return is_aten(op.opcode) ? void() : report_unknown(op, report);
  const int operands = static_cast<int>(op.operands.size()) - (is_counted_in_memory(op) ? 1 : 0);
  const bool few = operands < row->min_operands;
  if (few || (row->max_operands != kAny && operands > row->max_operands))
    return report(concat(name_of(op), " has ", plural(op.operands.size(), "operand")),
                  concat("expected ", few ? "at least " : "at most ", few ? row->min_operands : row->max_operands));
  const int results = static_cast<int>(op.results().size());
  if (row->results == kAny ? results < 1 : results != row->results)
    return report(concat(name_of(op), " has ", plural(op.results().size(), "result")),
                  row->results == kAny ? "expected at least 1" : concat("expected ", row->results));
  for (size_t i = 0; i < op.operands.size(); ++i)
    if (!op.operands[i] && ((row->flags & kOptional) == 0 || i == 0))
      return report(concat(name_of(op), " lacks operand ", i), "expected a value, got none");
}

}  // namespace

bool check_form(const Op& op, const Known& known, Report& report) {
  const size_t before = report.count();
  check_operands(op, known, report);
  if (report.count() == before) check_arity(op, report);
  return report.count() == before;
}

namespace {

// Whether the op is of the kind that names such a kernel, and the name is one of these.
void check_named_kernel(const Op& op, std::string_view key, bool (*may_name)(const Op&, const OpRow&),
                        const char* kinds, std::span<const std::string_view> names, Report& report) {
  const auto* kernel = op.find_attr<std::string>(key);
  if (!kernel) return;
  const OpRow* row = op.opcode.row();
  if (!row || !may_name(op, *row))
    report(concat(name_of(op), " has ", key, "=", *kernel), concat("expected it on ", kinds));
  if (std::ranges::find(names, *kernel) == names.end())
    report(concat(name_of(op), " has ", key, "=", quote_if_needed(*kernel)),
           concat("expected one of ", join({names.begin(), names.end()}, ", ")));
}

}  // namespace

void check_attributes(const Op& op, Report& report) {
  for (const auto& [key, value] : op.attrs)
    if (!is_word(key) || key == "bwd_of" || key == "at")
      report(concat(name_of(op), " has an attribute ", quote(key)), "expected a word the text form can hold");
  const auto is_product = [](const Op&, const OpRow& row) { return row.cost == CostClass::Product; };
  const auto is_attention = [](const Op&, const OpRow& row) { return row.cost == CostClass::Attention; };
  const auto is_over_rows = [](const Op& o, const OpRow& row) {
    return row.cost == CostClass::Reduction || row.cost == CostClass::Pointwise || is_update(o) ||
           o.is("cast", "embedding", "embedding_backward", "rope", "rope_inverse");
  };
  check_named_kernel(op, "product_kernel", is_product, "a product: linear, matmul, aten.mm, …", kProductKernels,
                     report);
  check_named_kernel(op, "attention_kernel", is_attention, "an attention: sdpa or sdpa_backward", kAttentionKernels,
                     report);
  check_named_kernel(op, "row_kernel", is_over_rows,
                     "an op over rows or on elements, such as cross_entropy, aten.mul or an update", kRowKernels,
                     report);
}

void check_rule(const Graph& graph, const Op& op, Report& report) {
  std::vector<Diagnostic> found;
  if (is_by_rank(op)) found = check_attribute_kinds(op);  // which the forms by rank read
  if (found.empty()) found = is_by_rank(op) ? check_by_rank(graph, op) : check_rule_of(graph, op);
  for (Diagnostic& diagnostic : found) report(std::move(diagnostic.message), std::move(diagnostic.detail));
}

void check_types(const Graph& graph, const Op& op, Report& report) {
  for (const auto& result : op.results()) {
    const Type& type = result->type();
    std::set<std::string> axes;
    for (const Dim& dim : type.dims) {
      for (const std::string& axis : dim.split) check_axis(graph, *result, axis, axes, report);
      for (const int64_t blocks : dim.blocks)
        if (blocks < 1 || dim.size % blocks != 0)
          report(concat('%', result->name(), " has a dimension of ", dim.size, " in ", blocks, " blocks"),
                 concat("expected a number of blocks that divides it, got ", type));
    }
    for (const AxisPlacement& placement : type.placements)
      for (const std::string& axis : placement.axes) check_axis(graph, *result, axis, axes, report);
    if (!type.strides.empty() && is_made_contiguous(op))
      report(concat('%', result->name(), " has strides"),
             concat("expected a contiguous tensor, as ", op.opcode, " makes it, got ", type));
    if (!type.strides.empty() && type.strides.size() != type.dims.size())
      report(concat('%', result->name(), " has ", plural(type.strides.size(), "stride")),
             concat("expected one per dimension, got ", type));
  }
}

}  // namespace sfsdp::ir::checks
