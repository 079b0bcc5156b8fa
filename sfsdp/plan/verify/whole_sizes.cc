// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/verify/whole_sizes.h"

#include <algorithm>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/verifier.h"

namespace sfsdp::plan {
namespace {

using ir::Op, ir::Type, ir::Value;

bool is_cut(const Layout& layout) { return layout.kind == Layout::Kind::Cut; }
int64_t size_of(const Value& value, const Layout& layout) {
  return value.type().dims[static_cast<size_t>(layout.dim)].size;
}

// A rank has one index of an operand's dimension, where another operand that is not cut has a dimension of one.
bool may_be_taken_for_another(const Op& op, const std::vector<Layout>& operands) {
  bool one_of_some = false, one_of_all = false;
  for (size_t k = 0; k < op.operands.size(); ++k) {
    const Value* value = op.operands[k];
    if (!value) continue;
    if (is_cut(operands[k]))
      one_of_some |= size_of(*value, operands[k]) == 1;
    else
      one_of_all |= std::ranges::find(value->type().dims, 1, &ir::Dim::size) != value->type().dims.end();
  }
  return one_of_some && one_of_all;
}

Type of_whole(const Value& value, const Layout& layout, int64_t ranks) {
  Type type = value.type();
  if (!is_cut(layout)) return type;
  type.dims[static_cast<size_t>(layout.dim)].size *= ranks;
  type.strides.clear();
  return type;
}

}  // namespace

std::string wrong_at_whole_sizes(const ir::Graph& graph, const Op& op, const std::vector<Layout>& operands,
                                 const std::vector<Layout>& results, int64_t ranks) {
  // Its N is a rank's own.
  if (op.is("aten.native_group_norm", "aten.native_group_norm_backward")) return "";
  if (!may_be_taken_for_another(op, operands) || !ir::check_rule_of(graph, op).empty()) return "";
  ir::Graph whole;
  whole.mesh = graph.mesh;
  std::vector<Value*> given = op.operands;
  for (size_t k = 0; k < given.size(); ++k)
    if (given[k] && is_cut(operands[k]))
      given[k] = whole.add("input", {}, {{given[k]->name(), of_whole(*given[k], operands[k], ranks)}})->result();
  std::vector<ir::Graph::NewResult> made;
  for (size_t r = 0; r < op.results().size(); ++r)
    made.push_back({op.results()[r]->name(), of_whole(*op.results()[r], results[r], ranks)});
  Op* copy = whole.add(op.opcode, std::move(given), std::move(made));
  copy->operand_lists = op.operand_lists;
  copy->attrs = op.attrs;
  copy->module_path = op.module_path;
  const std::vector<ir::Diagnostic> found = ir::check_rule_of(whole, *copy);
  return found.empty() ? "" : concat("on the sizes of all ranks ", found[0].message);
}

}  // namespace sfsdp::plan
