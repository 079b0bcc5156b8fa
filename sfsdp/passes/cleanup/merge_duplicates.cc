// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/cleanup/merge_duplicates.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/side_table.h"
#include "sfsdp/passes/analysis/own_memory.h"

namespace sfsdp::passes {
namespace {

using ir::Graph, ir::Op, ir::Value;
using Replacements = ir::ValueTable<Value*>;  // nullptr: it stays

// Random ops are not pure: they are told apart by where they stand, which no operand says.
bool is_mergeable(const Op& op, const ir::ValueTable<char>& own) {
  if (!ir::is_pure(op) || ir::is_start(op) || ir::is_wait(op)) return false;
  if (op.results().empty() || op.has_attr("donates")) return false;
  for (const auto& result : op.results())
    if (own[ir::storage_of(result.get())]) return false;
  return true;
}

Value* merged_value(Value* value, const Replacements& merged) {
  Value* kept = value ? merged[value] : nullptr;
  return kept ? kept : value;
}

// Alike for ops that compute the same, and cheap: a graph has tens of thousands.
size_t hash_of(const Op& op, const Replacements& merged) {
  size_t hash = std::hash<std::string_view>()(op.opcode);
  for (Value* operand : op.operands) hash = hash * 31 + std::hash<Value*>()(merged_value(operand, merged));
  return hash;
}

// Numbers by their text, which tells 0.0 from -0.0 and a nan from none.
bool same_attr(const ir::Attr& a, const ir::Attr& b) {
  const bool numbers = std::holds_alternative<double>(a) || std::holds_alternative<std::vector<double>>(a);
  return numbers ? a.index() == b.index() && concat(a) == concat(b) : a == b;
}

bool same_attrs(const Op& a, const Op& b) {
  return std::ranges::equal(a.attrs, b.attrs, [](const auto& x, const auto& y) {
    return x.first == y.first && same_attr(x.second, y.second);
  });
}

bool compute_the_same(const Op& a, const Op& b, const Replacements& merged) {
  if (a.opcode != b.opcode || a.section != b.section) return false;
  const auto same_value = [&](Value* x, Value* y) { return merged_value(x, merged) == merged_value(y, merged); };
  const auto same_type = [](const auto& x, const auto& y) { return x->type() == y->type(); };
  return std::ranges::equal(a.operands, b.operands, same_value) &&
         std::ranges::equal(a.results(), b.results(), same_type) && a.operand_lists == b.operand_lists &&
         same_attrs(a, b);
}

struct Duplicate {
  Op* op;
  Op* kept;
};

std::vector<Duplicate> find_duplicates(const Graph& graph, Replacements& merged) {
  ir::ValueTable<char> own(graph);
  for (const Value* value : own_memory(graph)) own[value] = 1;
  std::unordered_map<size_t, Op*> first;  // by hash
  first.reserve(graph.ops().size());
  ir::OpTable<Op*> next(graph, nullptr);  // of the same hash that is kept, in the graph's order
  std::vector<Duplicate> duplicates;
  for (const auto& op : graph.ops()) {
    if (!is_mergeable(*op, own)) continue;
    Op** place = &first[hash_of(*op, merged)];
    while (*place && !compute_the_same(**place, *op, merged)) place = &next[*place];
    if (!*place) {
      *place = op.get();
      continue;
    }
    duplicates.push_back({op.get(), *place});
    for (size_t i = 0; i < op->results().size(); ++i) merged[op->results()[i].get()] = (*place)->results()[i].get();
  }
  return duplicates;
}

void check_merged(const Graph& graph) {
  Replacements none(graph, nullptr);
  const size_t left = find_duplicates(graph, none).size();
  SFSDP_CHECK(left == 0, left, " duplicates are left");
}

}  // namespace

bool merge_duplicates(Graph& graph, PassContext& ctx) {
  Replacements merged(graph, nullptr);
  const std::vector<Duplicate> duplicates = find_duplicates(graph, merged);
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
    std::map<Value*, Value*> replaced;
    for (const Duplicate& duplicate : duplicates)
      for (const auto& result : duplicate.op->results()) replaced.emplace(result.get(), merged[result.get()]);
    graph.replace_uses(replaced);
    graph.erase(erased);
  }
  check_merged(graph);
  return !duplicates.empty();
}

}  // namespace sfsdp::passes
