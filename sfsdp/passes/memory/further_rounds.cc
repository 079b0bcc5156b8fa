// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/memory/further_rounds.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/cost/op_shape.h"
#include "sfsdp/ir/builder.h"
#include "sfsdp/ir/index.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::passes {
namespace {

using ir::Graph, ir::Op, ir::Type, ir::Value;

bool is_rows(const Value& value) {
  return std::ranges::any_of(value.type().placements,
                             [](const auto& p) { return p.placement.kind == ir::Placement::Kind::Rows; });
}
bool is_exchange(const Op& op) { return ir::collective_kind(op) == "all_to_all_v"; }

// What the first round leaves of one mixture's rows, in one section, before any of it is read.
struct Group {
  const Op* exchange = nullptr;  // one of the mixture's
  std::vector<Value*> left;
  size_t last = 0;  // the position of the op that makes the last one
};

class Rounds {
 public:
  explicit Rounds(Graph& graph) : graph_(graph), index_(graph), build_(graph) {}

  int64_t make() {
    find_exchanges();
    std::vector<Group> groups = find_groups();
    for (const Group& group : groups) make_loop(group);
    build_.apply();
    if (!groups.empty()) number_kernels();
    return std::ssize(groups);
  }

 private:
  // ---- what there is

  // One exchange of the mixture whose rows a value is; nullptr: it is none of room.
  const Op* exchange_of(const Value* value) const {
    const auto found = exchange_of_.find(value);
    return found == exchange_of_.end() ? nullptr : found->second;
  }

  void find_exchanges() {
    for (const auto& op : graph_.ops()) {
      const Op* exchange = is_exchange(*op) && op->has_attr("room") ? op.get() : nullptr;
      for (const Value* operand : op->operands)
        if (!exchange && operand) exchange = exchange_of(operand);
      if (!exchange) continue;
      const Op*& first = first_of_[exchange->operands[2]];
      if (!first) first = exchange;
      for (const auto& result : op->results())
        if (is_rows(*result)) exchange_of_[result.get()] = first;
    }
  }

  // What is left of rows: not rows itself, but for the start of a collective, whose wait is.
  std::vector<Value*> left_by(const Op& op) const {
    const bool reads_rows =
        std::ranges::any_of(op.operands, [&](const Value* operand) { return operand && exchange_of(operand); });
    if (!reads_rows || op.results().empty() || is_rows(*op.result())) return {};
    if (!ir::is_start(op)) return {op.result()};
    for (Op* reader : index_.readers(op.result()))
      if (ir::is_wait(*reader)) return {reader->result()};
    SFSDP_CHECK(false, "nobody waits for ", ir::name_of(op));
    return {};
  }

  // In the order in which they are there: a wait may stand far below its start.
  std::vector<Group> find_groups() const {
    std::map<size_t, std::pair<const Op*, Value*>> left;  // by the position of the op that makes it
    for (const auto& op : graph_.ops())
      for (Value* value : left_by(*op)) {
        const auto rows = std::ranges::find_if(op->operands, [&](const Value* v) { return v && exchange_of(v); });
        left[index_.position(value->producer())] = {exchange_of(*rows), value};
      }
    std::map<std::pair<const Op*, ir::Section>, std::vector<Group>> found;
    for (const auto& [at, made] : left) {
      const auto& [exchange, value] = made;
      std::vector<Group>& of = found[{exchange, value->producer()->section}];
      if (of.empty() || first_reader(of.back()) < at) of.push_back({exchange, {}, 0});
      of.back().left.push_back(value);
      of.back().last = at;
    }
    std::vector<Group> groups;
    for (auto& [key, of] : found) std::ranges::move(of, std::back_inserter(groups));
    std::ranges::sort(groups, {}, &Group::last);
    return groups;
  }

  size_t first_reader(const Group& group) const {
    size_t first = index_.size();
    for (const Value* left : group.left)
      for (const Op* reader : index_.readers(left)) first = std::min(first, index_.position(reader));
    return first;
  }

  // ---- the loop

  void make_loop(const Group& group) {
    Op* last = index_.at(group.last);
    const auto place = build_.after(last).like(*last);
    const Type number = Type::tensor(ir::DType::i64, {});
    Value* trips = number_of(*group.exchange);
    Value* first = place.value("full", {}, number, "round.first", {{"value", int64_t{1}}});
    std::vector<Value*> begins = {trips, first};
    std::vector<Graph::NewResult> carried = {{"round", number}};
    std::vector<int64_t> donates = {1};
    for (Value* left : group.left) {
      if (!left->type().strides.empty())
        throw UserError(concat("further_rounds: ", ir::opcode_at(*left->producer()), " leaves %", left->name(), " as ",
                               left->type(), "\n  expected a contiguous tensor, or no ",
                               "ExpertParallelOptions::capacity"));
      begins.push_back(left);
      carried.push_back({left->name() + ".sum", left->type()});
      donates.push_back(std::ssize(donates) + 1);
    }
    const int64_t at_most = std::max<int64_t>(most_rounds(*group.exchange) - 1, 1);
    Op* loop = place.op("loop", begins, carried, {{"at_most", at_most}, {"donates", donates}});
    round_ = loop->result(0);
    again_.clear();
    std::vector<Value*> leaves = {nullptr};
    for (size_t i = 0; i < group.left.size(); ++i) {
      Value* more = again(group.left[i], place);
      leaves.push_back(place.value("add_into", {loop->result(static_cast<int>(i) + 1), more}, group.left[i]->type(),
                                   group.left[i]->name() + ".added", {{"donates", std::vector<int64_t>{0}}}));
    }
    Value* next = place.value("aten.add.Scalar", {round_}, number, "round.next", {{"other", int64_t{1}}});
    leaves[0] = place.value("store", {round_, next}, number, "round.stored", {{"donates", std::vector<int64_t>{0}}});
    std::vector<int64_t> all;
    std::vector<Graph::NewResult> ends = {{"rounds", number}};
    for (size_t i = 0; i < leaves.size(); ++i) all.push_back(static_cast<int64_t>(i));
    for (Value* left : group.left) ends.push_back({left->name() + ".all", left->type()});
    Op* end = place.op("end", leaves, ends, {{"donates", all}});
    for (size_t i = 0; i < group.left.size(); ++i) replace(group.left[i], end->result(static_cast<int>(i) + 1));
  }

  // Whoever reads what the first round leaves reads what all rounds leave.
  void replace(Value* left, Value* all) {
    for (Op* reader : index_.readers(left)) std::ranges::replace(reader->operands, left, all);
    std::ranges::replace(graph_.outputs, left, all);
    for (ir::Carry& carry : graph_.carries)
      if (carry.next == left) carry.next = all;
  }

  // Kernels are numbered as they run; no kernel reaches over a loop.
  void number_kernels() {
    if (std::ranges::none_of(graph_.ops(), [](const auto& op) { return op->has_attr("kernel"); })) return;
    int64_t next = -1;
    std::optional<int64_t> open;  // the old number of the kernel whose ops come now
    for (const auto& op : graph_.ops()) {
      const cost::Class kind = cost::class_of(*op);
      if (kind == cost::Class::Free || kind == cost::Class::Communication) continue;
      const auto* kernel = op->find_attr<int64_t>("kernel");
      if (!kernel || open != *kernel) ++next;
      open = kernel ? std::optional(*kernel) : std::nullopt;
      op->attrs["kernel"] = next;
    }
  }

  // How many rounds at most, all rows on one rank.
  static int64_t most_rounds(const Op& exchange) {
    const int64_t rows = ir::rows_of_groups(exchange);
    const auto room = exchange.attr<int64_t>("room");
    return (rows + room - 1) / room;
  }

  // How many there are after the first, made where the offsets are.
  Value* number_of(const Op& exchange) {
    Value* ends = exchange.operands[2];
    Value*& made = numbers_[ends];
    if (!made)
      made = build_.after(ends->producer())
                 .like(exchange)
                 .in(ends->producer()->section)
                 .value("further_rounds", {ends}, Type::tensor(ir::DType::i64, {}), "rounds.further",
                        {{"axis", exchange.attrs.at("axis")}, {"room", exchange.attr<int64_t>("room")}});
    return made;
  }

  // The same of the rows of the body's round.
  Value* again(Value* value, const ir::Builder::Place& place) {
    const Op* op = value->producer();
    const bool says_ends = op->is("own_ends") && op->has_attr("room");
    const bool reads_rows =
        std::ranges::any_of(op->operands, [&](const Value* operand) { return operand && exchange_of(operand); });
    if (ir::is_wait(*op) && is_exchange(*op->operands[0]->producer())) op = op->operands[0]->producer();
    const bool exchanges = is_exchange(*op) && op->has_attr("room");
    if (!says_ends && !reads_rows && !exchanges) return value;
    if (const auto found = again_.find(value); found != again_.end()) return found->second;
    std::vector<Value*> operands;
    for (Value* operand : op->operands) operands.push_back(operand ? again(operand, place) : nullptr);
    if (says_ends || exchanges) operands.push_back(round_);
    std::vector<Graph::NewResult> results;
    for (const auto& result : op->results()) results.push_back({value->name() + ".again", result->type()});
    if (exchanges) results[0].type = value->type();
    const auto here = place.at(op->module_path);
    Op* made = exchanges ? here.op("all_to_all_v", operands, results, op->attrs) : here.again(*op, operands, results);
    made->attrs.erase("kernel");
    for (size_t r = 0; r < op->results().size(); ++r)
      if (!exchanges) again_[op->result(static_cast<int>(r))] = made->result(static_cast<int>(r));
    again_[value] = made->result(exchanges ? 0 : value->result_index());
    return again_[value];
  }

  Graph& graph_;
  const ir::Index index_;
  ir::Builder build_;
  std::unordered_map<const Value*, const Op*> exchange_of_;  // of rows
  std::unordered_map<const Value*, const Op*> first_of_;     // exchange, by its offsets
  std::unordered_map<const Value*, Value*> numbers_;         // of rounds, by offsets
  std::unordered_map<const Value*, Value*> again_;           // in the body that is made
  Value* round_ = nullptr;
};

}  // namespace

bool further_rounds(ir::Graph& graph, PassContext& ctx) {
  const int64_t loops = Rounds(graph).make();
  ctx.metrics.add("loops", loops);
  return loops > 0;
}

}  // namespace sfsdp::passes
