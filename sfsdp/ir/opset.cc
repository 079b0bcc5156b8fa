// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/opset.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/shape_rules.h"

namespace sfsdp::ir {
namespace {

#define SFSDP_OP(name, min_operands, max_operands, results, flags, cost, alias, rule) \
  OpRow{name, min_operands, max_operands, results, flags, CostClass::cost, Alias::alias, rule},
#define SFSDP_COLLECTIVE(name, most, rule)                                                    \
  OpRow{name, 1, most, 1, kPure | kCollective, CostClass::Communication, Alias::Fresh, rule}, \
      OpRow{name ".start", 1, most, 1, kPure | kCollective | kStart, CostClass::Communication, Alias::Fresh, rule},
constexpr OpRow kRows[] = {
#include "sfsdp/ir/opset.def"
#define SFSDP_ATEN(name, min_operands, max_operands, results, flags, cost, alias, rule) \
  OpRow{"aten." name, min_operands, max_operands, results, flags, CostClass::cost, Alias::alias, rule},
#include "sfsdp/ir/atenset.def"
#undef SFSDP_ATEN
};
#undef SFSDP_OP
#undef SFSDP_COLLECTIVE

struct AtenEffects {
  std::unordered_set<std::string_view> draws, drops_out, writes, out_overloads;
};

const AtenEffects& aten_effects() {
  static const AtenEffects effects = [] {
    AtenEffects e;
#define SFSDP_ATEN_DRAWS(name) e.draws.insert(name);
#define SFSDP_ATEN_DROPS_OUT(name) e.drops_out.insert(name);
#define SFSDP_ATEN_WRITES(name) e.writes.insert(name);
#define SFSDP_ATEN_OUT_OVERLOAD(name) e.out_overloads.insert(name);
#include "sfsdp/ir/aten_effects.def"
#undef SFSDP_ATEN_DRAWS
#undef SFSDP_ATEN_DROPS_OUT
#undef SFSDP_ATEN_WRITES
#undef SFSDP_ATEN_OUT_OVERLOAD
    return e;
  }();
  return effects;
}

constexpr std::string_view kAten = "aten.";

struct AtenName {
  std::string_view base;      // "add"
  std::string_view overload;  // "Tensor" or ""
};

AtenName split_aten(std::string_view opcode) {
  std::string_view rest = opcode.substr(kAten.size());
  const size_t dot = rest.find('.');
  if (dot == std::string_view::npos) return {rest, ""};
  return {rest.substr(0, dot), rest.substr(dot + 1)};
}

bool is_random_aten(const Op& op) {
  const AtenName name = split_aten(op.opcode);
  if (aten_effects().draws.contains(name.base)) return true;
  const auto* p = op.find_attr<double>("dropout_p");
  return aten_effects().drops_out.contains(name.base) && p && *p > 0;
}

bool writes_argument(std::string_view opcode) {
  const AtenEffects& effects = aten_effects();
  const AtenName name = split_aten(opcode);
  const bool in_place = name.base.ends_with('_') && !name.base.ends_with("__");
  return in_place || effects.writes.contains(opcode.substr(kAten.size())) || name.overload == "out" ||
         name.overload.ends_with("_out") || effects.out_overloads.contains(name.overload);
}

}  // namespace

std::span<const OpRow> opset() { return kRows; }

const OpRow* find_row(std::string_view opcode) {
  static const auto by_name = [] {
    std::unordered_map<std::string_view, const OpRow*> rows;
    for (const OpRow& row : kRows) rows.emplace(row.name, &row);
    return rows;
  }();
  auto found = by_name.find(opcode);
  if (found == by_name.end() && is_aten(opcode)) {
    const auto [base, overload] = split_aten(opcode);
    if (overload != "out" && !overload.ends_with("_out")) found = by_name.find(concat("aten.", base, ".*"));
  }
  return found == by_name.end() ? nullptr : found->second;
}

bool has_flag(const Op& op, OpFlags flag) {
  const OpRow* row = find_row(op.opcode);
  return row && (row->flags & flag) != 0;
}

std::vector<std::string> unchecked_opcodes(const Graph& graph) {
  std::set<std::string> found;
  for (const auto& op : graph.ops()) {
    const OpRow* row = find_row(op->opcode);
    if (!row || (is_aten(op->opcode) && row->rule == no_rule)) found.insert(op->opcode);
  }
  return {found.begin(), found.end()};
}

bool is_aten(std::string_view opcode) { return opcode.starts_with(kAten) && opcode.size() > kAten.size(); }

bool is_pure(const Op& op) {
  return is_aten(op.opcode) ? !writes_argument(op.opcode) && !is_random_aten(op) : has_flag(op, kPure);
}
bool is_root(const Op& op) { return has_flag(op, kRoot); }
bool is_collective(const Op& op) { return has_flag(op, kCollective); }
bool is_start(const Op& op) { return has_flag(op, kStart); }
bool is_wait(const Op& op) { return op.is("wait"); }

bool is_once(const Op& op) {
  const auto* once = op.find_attr<bool>("once");
  return once && *once;
}

bool is_repeated(const Op& op) { return is_repeated(op.section) && !is_once(op); }

bool is_random(const Op& op) { return is_aten(op.opcode) ? is_random_aten(op) : has_flag(op, kRandom); }

int aliased_operand(const Op& op) {
  if (op.operands.empty() || !op.operands[0]) return -1;
  const OpRow* row = find_row(op.opcode);
  return row && row->alias == Alias::ViewOfFirst ? 0 : -1;
}

const Value* storage_of(const Value* value) {
  while (true) {
    const int aliased = aliased_operand(*value->producer());
    if (aliased < 0) return value;
    value = value->producer()->operands[static_cast<size_t>(aliased)];
  }
}

std::string_view collective_kind(const Op& op) { return std::string_view(op.opcode).substr(0, op.opcode.find('.')); }

ReduceOp reduce_op(const Op& op) {
  return op.has_attr("op") ? parse_reduce_op(op.attr<std::string>("op")).value_or(ReduceOp::Sum) : ReduceOp::Sum;
}

std::string call_text(const Op& op) {
  Type sent = op.operands[0]->type();
  sent.placements.clear();
  std::string text = concat(collective_kind(op), " of ", sent);
  for (const char* key : {"op", "root", "dim"})
    if (op.has_attr(key)) text += concat(" ", key, "=", op.attrs.at(key));
  return text;
}

std::optional<std::vector<std::string>> axes_of(const Op& op) {
  if (const auto* axis = op.find_attr<std::string>("axis")) return std::vector<std::string>{*axis};
  if (const auto* axes = op.find_attr<std::vector<std::string>>("axis")) return *axes;
  return std::nullopt;
}

std::optional<int64_t> axis_size(const Graph& graph, std::span<const std::string> axes) {
  int64_t size = 1;
  for (const std::string& axis : axes) {
    const auto found = std::ranges::find(graph.mesh, axis, &MeshAxis::name);
    if (found == graph.mesh.end()) return std::nullopt;
    size *= found->size;
  }
  return size;
}

double number_of(const Op& op, const std::string& key) {
  if (const auto* whole = op.find_attr<int64_t>(key)) return static_cast<double>(*whole);
  if (const auto* flag = op.find_attr<bool>(key)) return *flag ? 1 : 0;
  return op.attr<double>(key);
}

double number_of(const Op& op, const std::string& key, double fallback) {
  return op.has_attr(key) ? number_of(op, key) : fallback;
}

std::vector<int64_t> donated_operands(const Op& op) {
  const auto* indexes = op.find_attr<std::vector<int64_t>>("donates");
  return indexes ? *indexes : std::vector<int64_t>();
}

}  // namespace sfsdp::ir
