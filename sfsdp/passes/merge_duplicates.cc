// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/merge_duplicates.h"

#include <map>
#include <set>
#include <sstream>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::passes {
namespace {

using ir::Graph, ir::Op, ir::Value;
using Replacements = std::map<Value*, Value*>;

// Memory that must stay apart although the values are equal: a donated buffer is overwritten, and two carried values
// are updated separately from the next step on.
std::set<const Value*> find_own_memory(const Graph& graph) {
  std::set<const Value*> own;
  for (const ir::Carry& carry : graph.carries) own.insert(ir::storage_of(carry.next));
  for (const auto& op : graph.ops())
    for (const int64_t index : ir::donated_operands(*op))
      own.insert(ir::storage_of(op->operands[static_cast<size_t>(index)]));
  return own;
}

// Random ops are told apart by where they stand, which no operand says.
bool is_mergeable(const Op& op, const std::set<const Value*>& own_memory) {
  if (!ir::is_pure(op) || ir::is_random(op) || ir::is_start(op) || ir::is_wait(op)) return false;
  if (op.results().empty() || op.has_attr("donates")) return false;
  for (const auto& result : op.results())
    if (own_memory.contains(ir::storage_of(result.get()))) return false;
  return true;
}

// Equal for ops that compute the same. Operands go by name: unlike an address, it is the same on every rank.
std::string key_of(const Op& op, const Replacements& merged, const MergeDuplicatesOptions& options) {
  std::ostringstream key;
  if (!options.across_sections) key << ir::to_string(op.section) << ": ";
  key << op.opcode;
  for (Value* operand : op.operands) {
    const auto found = merged.find(operand);
    const Value* value = found == merged.end() ? operand : found->second;
    key << " %" << (value ? value->name() : "");
  }
  for (const Op::OperandList& list : op.operand_lists) key << " list " << list.first << '+' << list.count;
  for (const auto& [name, value] : op.attrs) key << ' ' << name << '=' << value;
  for (const auto& result : op.results()) key << " : " << result->type();
  return key.str();
}

struct Duplicate {
  Op* op;
  Op* kept;
};

std::vector<Duplicate> find_duplicates(const Graph& graph, const MergeDuplicatesOptions& options,
                                       Replacements& merged) {
  const std::set<const Value*> own_memory = find_own_memory(graph);
  std::map<std::string, Op*> first_of;
  std::vector<Duplicate> duplicates;
  for (const auto& op : graph.ops()) {
    if (!is_mergeable(*op, own_memory)) continue;
    const auto [found, inserted] = first_of.emplace(key_of(*op, merged, options), op.get());
    if (inserted) continue;
    duplicates.push_back({op.get(), found->second});
    for (size_t i = 0; i < op->results().size(); ++i)
      merged.emplace(op->results()[i].get(), found->second->results()[i].get());
  }
  return duplicates;
}

void check_merged(const Graph& graph, const MergeDuplicatesOptions& options) {
  Replacements none;
  const size_t left = find_duplicates(graph, options, none).size();
  SFSDP_CHECK(left == 0, left, " duplicates are left");
}

}  // namespace

bool merge_duplicates(Graph& graph, const MergeDuplicatesOptions& options, PassContext& ctx) {
  Replacements merged;
  const std::vector<Duplicate> duplicates = find_duplicates(graph, options, merged);
  std::map<const Op*, const Op*> kept_of;
  std::vector<Op*> erased;
  for (const Duplicate& duplicate : duplicates) {
    ctx.metrics.add("ops_merged", 1);
    if (ir::is_collective(*duplicate.op)) {
      ctx.metrics.add("collectives_merged", 1);
      ctx.metrics.add("bytes_saved", duplicate.op->result()->type().bytes());
    }
    kept_of.emplace(duplicate.op, duplicate.kept);
    erased.push_back(duplicate.op);
  }
  if (!duplicates.empty()) {
    for (const auto& op : graph.ops())
      if (const auto found = kept_of.find(op->bwd_of); found != kept_of.end()) op->bwd_of = found->second;
    graph.replace_uses(merged);
    graph.erase(erased);
  }
  check_merged(graph, options);
  return !duplicates.empty();
}

}  // namespace sfsdp::passes
