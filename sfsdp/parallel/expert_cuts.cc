// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/expert_cuts.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <unordered_set>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/index.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/parallel/localise.h"

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
  while (op->is("cast", "aten._to_copy") || ir::has_flag(*op, ir::kReshape) || ir::has_flag(*op, ir::kPermute))
    op = op->operands[0]->producer();
  return *op;
}

// Whether the op needs what the other one makes.
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

// What an op needs of what stands below another one, then that one: the order of the graph, but for these.
class Hoist {
 public:
  explicit Hoist(ir::Graph& graph) : graph_(graph) {}

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

// Views among them, which an index of rows is often given by.
bool is_row_by_row(const Op& op) {
  const ir::OpRow* row = op.opcode.row();
  return op.is("cast", "aten._to_copy") || ir::has_flag(op, ir::kReshape) ||
         (row && row->cost == ir::CostClass::Pointwise);
}

// The picks of rows that a product's rows are made of, element by element.
class Picks {
 public:
  explicit Picks(int64_t rows) : rows_(rows) {}

  std::vector<Value*> of(Value* value) {
    walk(value);
    return std::move(found_);
  }

 private:
  void walk(Value* value) {
    const Op& op = *value->producer();
    if (value->type().dims.empty() || value->type().dims[0].size != rows_ || !seen_.insert(value).second) return;
    if (rows_operand(op)) return found_.push_back(value);
    if (!is_row_by_row(op)) return;
    for (Value* operand : op.operands)
      if (operand) walk(operand);
  }

  const int64_t rows_;
  std::unordered_set<const Value*> seen_;
  std::vector<Value*> found_;
};

bool adds_rows(const Op& op) { return op.is("aten.index_add", "aten.index_put", "aten.scatter_add"); }

bool is_zeros(const Op& op) {
  return op.is("aten.new_zeros", "aten.zeros", "aten.zeros_like") || (op.is("full") && ir::number_of(op, "value") == 0);
}

// An index of elements, [rows, width], that names whole rows: one number for each, repeated.
Value* repeated_index(const Op& op) {
  Value* index = op.operands[1];
  const std::vector<int64_t> shape = index->type().shape(),
                             rows = op.operands[op.operands.size() == 3 ? 2 : 0]->type().shape();
  if (shape.size() != 2 || rows.size() != 2 || shape[1] != rows[1] || !index->producer()->is("aten.expand"))
    return nullptr;
  Value* below = index->producer()->operands[0];
  if (below->type().dims.empty() || below->type().dims.back().size != 1) return nullptr;  // repeated for each row
  while (below->type().dims.size() != 1 && ir::has_flag(*below->producer(), ir::kReshape))
    below = below->producer()->operands[0];
  return below->type().dims.size() == 1 && below->type().numel() == shape[0] ? below : nullptr;
}

}  // namespace

WantedRows find_wanted_rows(ir::Graph& graph, const std::map<std::string, int64_t>& cuts) {
  WantedRows wanted;
  std::unordered_map<const Op*, Op*> needs;
  const ir::Index index(graph);
  const auto want = [&](Value* rows_of, Value* ends, int64_t rows) {
    for (const Value* value : Picks(rows).of(rows_of)) {
      const Op& picks = *value->producer();
      if (wanted.contains(value) || reads(*ends->producer(), picks)) continue;
      wanted.emplace(value, ends);
      needs.emplace(&picks, ends->producer());
    }
  };
  for (const auto& op : graph.ops()) {
    if (!op->is("aten._grouped_mm") || !op->operands[2] || op->operands[1]->type().dims.size() != 3) continue;
    const Op& weight = source_of(op->operands[1]);
    if (!weight.is("param") || !cuts.contains(weight.attr<std::string>("name"))) continue;
    Value* ends = op->operands[2];
    const int64_t rows = op->operands[0]->type().dims[0].size;
    want(op->operands[0], ends, rows);
    // What meets their rows afterwards, such as a weight for each.
    std::vector<const Value*> made = {op->result()};
    std::unordered_set<const Value*> seen = {op->result()};
    while (!made.empty()) {
      const Value* value = made.back();
      made.pop_back();
      for (Op* reader : index.readers(value)) {
        if (!is_row_by_row(*reader)) continue;
        for (Value* operand : reader->operands)
          if (operand && operand != value) want(operand, ends, rows);
        for (const auto& result : reader->results())
          if (!result->type().dims.empty() && result->type().dims[0].size == rows && seen.insert(result.get()).second)
            made.push_back(result.get());
      }
    }
  }
  if (!needs.empty()) Hoist(graph).run(needs);
  return wanted;
}

// x[index] is index_select, and its gradient an index_add, where one index stands alone; so are gather and scatter_add of whole rows.
std::optional<size_t> rows_operand(const Op& op) {
  const bool adds = adds_rows(op), by_list = op.is("aten.index.Tensor", "aten.index_put"),
             by_element = op.is("aten.gather", "aten.scatter_add");
  if (!adds && !by_list && !by_element && !op.is("aten.index_select")) return std::nullopt;
  if (op.operands.size() != (adds ? 3 : 2) || !op.operands[1] || (adds && !is_zeros(*op.operands[0]->producer())))
    return std::nullopt;
  if (op.is("aten.index_add") && ir::number_of(op, "alpha", 1) != 1) return std::nullopt;
  if (op.is("aten.index_put") && !op.attr_or<bool>("accumulate", false)) return std::nullopt;
  const auto dims = std::ssize(op.operands[adds ? 2 : 0]->type().dims);
  const int64_t dim = by_list ? 0 : op.attr<int64_t>("dim");
  const Value* index = row_index(op);
  if (dims == 0 || (dim != 0 && dim != -dims) || !index || index->type().dims.size() != 1 ||
      index->type().dtype == ir::DType::b1)
    return std::nullopt;
  return adds ? 2 : 0;
}

Value* row_index(const Op& op) {
  return op.is("aten.gather", "aten.scatter_add") ? repeated_index(op) : op.operands[1];
}

std::optional<OpCut> exchange_cut_of(const Op& op, const std::vector<Placement>& operands, int64_t offsets,
                                     int64_t ranks) {
  const auto rows = rows_operand(op);
  if (!rows) return std::nullopt;
  const Placement part = Placement::shard(0), whole = Placement::replicate(), &from = operands[*rows];
  OpCut way{.operands = std::vector<std::optional<Placement>>(operands.size()), .results = {}};
  way.operands[*rows] = from;
  const bool may_be_part = from == whole && op.operands[*rows]->type().dims[0].size % ranks == 0;
  if (offsets > 0 && (from == part || may_be_part)) {
    way.operands[*rows] = part;
    way.results = {Placement::rows(0, offsets)};
  } else if (from.kind == Placement::Kind::Rows && from.dim == 0 && op.result()->type().dims[0].size % ranks == 0) {
    way.results = {part};
  } else {
    return std::nullopt;
  }
  return way;
}

int64_t room_of(int64_t rows, int64_t ranks, double capacity) {
  if (capacity <= 0) return 0;
  // A dimension of one row would be taken for one that is repeated.
  const double room = std::max(std::ceil(capacity * static_cast<double>(rows) / static_cast<double>(ranks)), 2.0);
  return room >= static_cast<double>(rows) ? 0 : static_cast<int64_t>(room);
}

bool exchanges_less(const Op& op, const std::vector<Placement>& operands, int64_t ranks) {
  const auto rows = rows_operand(op);
  return rows && operands[*rows] == Placement::shard(0) &&
         row_index(op)->type().numel() < op.operands[*rows]->type().dims[0].size * ranks;
}

void throw_not_exchanged(const std::string& axis, const Value& value, const Op* reader) {
  throw UserError(
      concat(verb_of(axis), reader ? ir::opcode_at(*reader) : "the step", " wants a rank's rows of ",
             ir::opcode_at(*value.producer()), " %", value.name(),
             ", which does not pick them out of tokens, so that they cannot be ",
             "exchanged, nor computed in rounds\n  expected index_select, gather or x[index] in dimension 0, and ops "
             "that make each ",
             "row of the same row, or neither ExpertParallelOptions::capacity nor DispatchMethod::Exchange"));
}

void throw_no_room(const std::string& axis, const Value& value, const Op* reader) {
  throw UserError(concat(
      verb_of(axis), reader ? ir::opcode_at(*reader) : "the step", " wants ", ir::opcode_at(*value.producer()), " %",
      value.name(), " of all ranks' experts at once, and they have room for some rows\n  expected ops that make each ",
      "row of the same row between a mixture's exchanges, or no ExpertParallelOptions::capacity"));
}

void check_no_rows(const std::string& axis, const Value& value, const Op* reader) {
  for (const ir::AxisPlacement& one : value.type().placements)
    if (one.placement.kind == Placement::Kind::Rows)
      throw UserError(concat(verb_of(axis), reader ? ir::opcode_at(*reader) : "the step", " wants all of ",
                             ir::opcode_at(*value.producer()), " %", value.name(), " over ", axis,
                             ", of which each rank of ", join(one.axes, ","),
                             " has rows\n  expected rules for the width of each expert, which these ops make and then "
                             "add up, such as {\"*.experts.w1|w3\", Shard(1)}, {\"*.experts.w2\", Shard(2)}"));
}

Value* make_exchange(const ir::Builder::Place& place, const Op& op, Value* index, Value* ends, const std::string& axis,
                     bool to_rows) {
  const bool adds = adds_rows(op);
  Value* sent = op.operands[*rows_operand(op)];
  const ir::Type &in = sent->type(), &out = op.result()->type();
  ir::Attrs attrs = {{"axis", axis}, {"rows", (adds ? out : in).dims[0].size}, {"to", to_rows ? "rows" : "parts"}};
  if (adds) attrs["adds"] = true;
  ir::Type type = out;
  type.strides.clear();
  return place.value("all_to_all_v", {sent, index, ends}, type, "", attrs);
}

}  // namespace sfsdp::parallel
