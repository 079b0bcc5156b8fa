// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/expert_cuts.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <unordered_set>

#include "sfsdp/ir/opset.h"

namespace sfsdp::parallel {

using ir::Op, ir::Placement, ir::Value;

std::optional<OpCut> expert_cut_of(const Op& op, const std::vector<Placement>& operands, int64_t offsets) {
  if (!op.is("aten._grouped_mm")) return std::nullopt;
  const Placement rows = Placement::rows(0, offsets), columns = Placement::rows(1, offsets),
                  groups = Placement::shard(0);
  OpCut way{.operands = std::vector<std::optional<Placement>>(operands.size()), .results = {}};
  if (op.operands[1]->type().dims.size() == 3) {
    if (operands[1] != groups) return std::nullopt;
    way.operands[0] = rows;
    way.operands[1] = groups;
    way.results = {rows};
    return way;
  }
  if (operands[0] != columns && operands[1] != rows) return std::nullopt;
  way.operands[0] = columns;
  way.operands[1] = rows;
  way.results = {groups};
  return way;
}

namespace {

// Through what changes no element.
const Op& source_of(const Value* value) {
  const Op* op = value->producer();
  while (op->is("cast") || ir::has_flag(*op, ir::kReshape) || ir::has_flag(*op, ir::kPermute))
    op = op->operands[0]->producer();
  return *op;
}

// What an op needs of what stands below another one, then that one: the order of the graph, but for these.
class Hoist {
 public:
  explicit Hoist(ir::Graph& graph) : graph_(graph) {}

  bool reads(const Op& op, const Op& other) {
    std::unordered_set<const Op*> seen;
    const std::function<bool(const Op&)> walk = [&](const Op& at) {
      if (&at == &other) return true;
      if (!seen.insert(&at).second) return false;
      for (const Value* operand : at.operands)
        if (operand && walk(*operand->producer())) return true;
      return false;
    };
    return walk(op);
  }

  void run(const std::unordered_map<const Op*, Op*>& needs) {
    for (const auto& op : graph_.ops()) {
      if (const auto found = needs.find(op.get()); found != needs.end()) emit(found->second);
      emit(op.get());
    }
    graph_.set_order(order_);
  }

 private:
  void emit(Op* op) {
    if (!done_.insert(op).second) return;
    for (const Value* operand : op->operands)
      if (operand) emit(operand->producer());
    order_.push_back(op);
  }

  ir::Graph& graph_;
  std::unordered_set<const Op*> done_;
  std::vector<Op*> order_;
};

}  // namespace

WantedRows find_wanted_rows(ir::Graph& graph, const std::map<std::string, int64_t>& cuts) {
  WantedRows wanted;
  std::unordered_map<const Op*, Op*> needs;
  Hoist hoist(graph);
  for (const auto& op : graph.ops()) {
    if (!op->is("aten._grouped_mm") || !op->operands[2] || op->operands[1]->type().dims.size() != 3) continue;
    const Op& weight = source_of(op->operands[1]);
    if (!weight.is("param") || !cuts.contains(weight.attr<std::string>("name"))) continue;
    const Value* rows = op->operands[0];
    while (rows->producer()->is("cast")) rows = rows->producer()->operands[0];
    const Op& picks = *rows->producer();
    Value* ends = op->operands[2];
    if (!rows_operand(picks) || wanted.contains(rows) || hoist.reads(*ends->producer(), picks)) continue;
    wanted.emplace(rows, ends);
    needs.emplace(&picks, ends->producer());
  }
  if (!needs.empty()) hoist.run(needs);
  return wanted;
}

std::optional<size_t> rows_operand(const Op& op) {
  const bool adds = op.is("aten.index_add");
  if (!adds && !op.is("aten.index_select")) return std::nullopt;
  if (adds && (!op.operands[0]->producer()->is("aten.new_zeros") || ir::number_of(op, "alpha", 1) != 1))
    return std::nullopt;
  const Value *rows = op.operands[adds ? 2 : 0], *index = op.operands[1];
  const auto dims = std::ssize(rows->type().dims);
  const auto dim = op.attr<int64_t>("dim");
  if (dims == 0 || (dim != 0 && dim != -dims) || index->type().dims.size() != 1) return std::nullopt;
  return adds ? 2 : 0;
}

std::optional<OpCut> exchange_cut_of(const Op& op, const std::vector<Placement>& operands, int64_t offsets,
                                     int64_t ranks) {
  const auto rows = rows_operand(op);
  if (!rows) return std::nullopt;
  const Placement part = Placement::shard(0), &from = operands[*rows];
  OpCut way{.operands = std::vector<std::optional<Placement>>(operands.size()), .results = {}};
  way.operands[1] = Placement::replicate();
  way.operands[*rows] = from;
  if (offsets > 0 && from == part)
    way.results = {Placement::rows(0, offsets)};
  else if (from.kind == Placement::Kind::Rows && from.dim == 0 && op.result()->type().dims[0].size % ranks == 0)
    way.results = {part};
  else
    return std::nullopt;
  return way;
}

bool exchanges(const ExpertParallelOptions& options) {
  return options.dispatch != DispatchMethod::Gather || options.capacity > 0;
}

int64_t rows_in_all(const Op& op, bool to_rows) {
  const bool adds = op.is("aten.index_add");
  if (adds != to_rows) return op.operands[1]->type().numel();
  return (adds ? op.result() : op.operands[0])->type().dims[0].size;
}

int64_t room_of(int64_t rows, int64_t ranks, double capacity) {
  if (capacity <= 0) return 0;
  // A dimension of one row would be taken for one that is repeated.
  const double room = std::max(std::ceil(capacity * static_cast<double>(rows) / static_cast<double>(ranks)), 2.0);
  return room >= static_cast<double>(rows) ? 0 : static_cast<int64_t>(room);
}

bool exchanges_less(const Op& op, int64_t ranks) {
  const auto rows = rows_operand(op);
  return rows && op.operands[1]->type().numel() < op.operands[*rows]->type().dims[0].size * ranks;
}

Value* make_exchange(const ir::Builder::Place& place, const Op& op, Value* ends, const std::string& axis,
                     bool to_rows) {
  const bool adds = op.is("aten.index_add");
  const ir::Type &in = op.operands[adds ? 2 : 0]->type(), &out = op.result()->type();
  ir::Attrs attrs = {{"axis", axis}, {"rows", (adds ? out : in).dims[0].size}, {"to", to_rows ? "rows" : "parts"}};
  if (adds) attrs["adds"] = true;
  ir::Type type = out;
  type.strides.clear();
  return place.value("all_to_all_v", {op.operands[adds ? 2 : 0], op.operands[1], ends}, type, "", attrs);
}

}  // namespace sfsdp::parallel
