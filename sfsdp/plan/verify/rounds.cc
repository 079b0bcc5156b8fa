// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/verify/rounds.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/index.h"
#include "sfsdp/ir/loops.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::plan {
namespace {

using ir::Op, ir::Value;

bool has_rounds(const Op& op) {
  return op.has_attr("room") && (ir::collective_kind(op) == "all_to_all_v" || op.is("own_ends"));
}
size_t round_operand(const Op& op) { return op.is("own_ends") ? 1 : 3; }

class Checker {
 public:
  explicit Checker(const ir::Graph& graph) : graph_(graph), index_(graph), loops_(ir::loops_of(graph)) {}

  std::string check() {
    for (const auto& op : graph_.ops()) {
      note(*op);
      if (std::string wrong = check_round(*op); !wrong.empty()) return wrong;
      if (first_.empty() || !leaves(*op)) continue;
      const Value* left = ir::is_start(*op) ? waited_for(*op) : op->result();
      if (std::string wrong = check_left(*op, left); !wrong.empty()) return wrong;
      left_.insert(left);
    }
    for (const ir::Loop& loop : loops_)
      if (loop.begin->operands[0]->producer()->is("further_rounds"))
        for (size_t k = 2; k < loop.begin->operands.size(); ++k)
          if (!left_.contains(loop.begin->operands[k]))
            return error(*loop.begin, concat("it adds rounds to %", loop.begin->operands[k]->name()),
                         "what a first round leaves, once");
    return "";
  }

 private:
  // A number of a round is that of the loop that the op is in.
  std::string check_round(const Op& op) const {
    if (!has_rounds(op) || op.operands.size() <= round_operand(op)) return "";
    const ir::Loop* loop = ir::loop_around(loops_, index_.position(&op));
    if (loop && op.operands[round_operand(op)] == loop->begin->results()[0].get()) return "";
    return error(op, concat("its round is %", op.operands[round_operand(op)]->name()),
                 "what the loop that it is in carries first, or none for the first round");
  }

  // The exchange or ends by which a value is of some of a rank's rows, outside of loops.
  void note(const Op& op) {
    const Op* by = has_rounds(op) && op.operands.size() <= round_operand(op) ? &op : nullptr;
    for (const Value* operand : op.operands)
      if (!by && operand)
        if (const auto found = first_.find(operand); found != first_.end()) by = found->second;
    if (!by) return;
    for (const auto& result : op.results())
      if (is_rows(*result)) first_[result.get()] = by;
  }
  static bool is_rows(const Value& value) {
    return std::ranges::any_of(value.type().placements,
                               [](const auto& p) { return p.placement.kind == ir::Placement::Kind::Rows; });
  }
  // What is made of some of a rank's rows, and is none of them.
  bool leaves(const Op& op) const { return !op.results().empty() && !is_rows(*op.result()) && rows_of(op) != nullptr; }
  const Op* rows_of(const Op& op) const {
    for (const Value* operand : op.operands)
      if (const auto found = first_.find(operand); operand && found != first_.end()) return found->second;
    return nullptr;
  }
  const Value* waited_for(const Op& start) const {
    const auto readers = index_.readers(start.result());
    return readers.size() == 1 && ir::is_wait(*readers[0]) ? readers[0]->result() : start.result();
  }

  static std::string error(const Op& op, const std::string& what, const std::string& expected) {
    return concat(ir::opcode_at(op), op.results().empty() ? "" : " %" + op.result()->name(), ": ", what,
                  "\n  expected ", expected);
  }

  std::string check_left(const Op& op, const Value* left) {
    const auto readers = index_.readers(left);
    const bool is_alone = readers.size() == 1 && ir::is_loop(*readers[0]) && !index_.is_returned(left);
    if (!is_alone)
      return error(op,
                   concat("%", left->name(), " is of the first round's rows alone, and is read as if it were of all"),
                   "one reader, a loop of the rounds after it");
    const Op& loop = *readers[0];
    const auto found = std::ranges::find(loops_, &loop, &ir::Loop::begin);
    if (found == loops_.end()) return error(loop, "it has no end", "an op `end`");
    if (std::string wrong = check_count(*found, *rows_of(op)); !wrong.empty()) return wrong;
    const auto k = static_cast<size_t>(std::ranges::find(loop.operands, left) - loop.operands.begin()) - 1;
    const Op& sum = *found->end->operands[k]->producer();
    const Value* before = loop.results()[k].get();
    const bool plain = std::ranges::all_of(
        sum.attrs, [](const auto& attr) { return attr.first == "donates" || attr.first == "kernel"; });
    if (k == 0 || !sum.is("add_into") || !plain || sum.operands[0] != before || index_.readers(before).size() != 1)
      return error(loop, concat("what a trip leaves for %", left->name(), " is not the sum of it and the round's"),
                   "add_into of what is carried and of what the round makes");
    same_.clear();
    if (!is_same(left, sum.operands[1], *found))
      return error(
          sum, concat("%", sum.operands[1]->name(), " is made otherwise than %", left->name(), " of the first round"),
          "the same ops, of the rows of the round that is carried");
    return "";
  }

  // As many trips as there are rounds, counted from 1.
  std::string check_count(const ir::Loop& loop, const Op& exchange) const {
    const Op& number = *loop.begin->operands[0]->producer();
    const Value* ends = exchange.operands[exchange.is("own_ends") ? 0 : 2];
    if (!number.is("further_rounds") || number.operands[0] != ends ||
        number.attr<int64_t>("room") != exchange.attr<int64_t>("room") ||
        number.attrs.at("axis") != exchange.attrs.at("axis"))
      return error(*loop.begin, "it runs as often as something else than the rounds of its rows",
                   "further_rounds of their ends");
    const Op &first = *loop.begin->operands[1]->producer(), &stored = *loop.end->operands[0]->producer();
    const Value* round = loop.begin->results()[0].get();
    const bool begins = first.is("full") && ir::number_of(first, "value") == 1;
    const bool counts = stored.is("store") && stored.operands[0] == round &&
                        stored.operands[1]->producer()->is("aten.add.Scalar") &&
                        stored.operands[1]->producer()->operands[0] == round &&
                        ir::number_of(*stored.operands[1]->producer(), "other") == 1 &&
                        ir::number_of(*stored.operands[1]->producer(), "alpha", 1) == 1;
    if (!begins || !counts)
      return error(*loop.begin, "it does not count rounds from 1",
                   "1, and one more in each trip, as the first that it carries");
    return "";
  }

  static const Op& source_of(const Value* value) {
    const Op& op = *value->producer();
    return ir::is_wait(op) ? *op.operands[0]->producer() : op;
  }

  // Whether `b`, of the body, is to the round's rows what `a` is to the first one's.
  bool is_same(const Value* a, const Value* b, const ir::Loop& loop) {
    if (a == b) return !first_.contains(a) && !has_rounds(source_of(a));
    const auto [known, is_new] = same_.emplace(std::pair(a, b), true);
    if (!is_new) return known->second;
    return known->second = are_alike(source_of(a), source_of(b), a->result_index(), b->result_index(), loop);
  }
  bool are_alike(const Op& a, const Op& b, int of_a, int of_b, const ir::Loop& loop) {
    ir::Attrs left = a.attrs, right = b.attrs;
    left.erase("kernel");
    right.erase("kernel");
    const bool opcodes = ir::is_collective(a) ? ir::collective_kind(a) == ir::collective_kind(b) : a.opcode == b.opcode;
    if (!opcodes || of_a != of_b || left != right || !loop.has(index_.position(&b))) return false;
    const size_t more = has_rounds(a) ? 1 : 0;
    if (b.operands.size() != a.operands.size() + more || a.operand_lists != b.operand_lists) return false;
    if (more && b.operands.back() != loop.begin->results()[0].get()) return false;
    for (size_t k = 0; k < a.operands.size(); ++k)
      if ((a.operands[k] == nullptr) != (b.operands[k] == nullptr) ||
          (a.operands[k] && !is_same(a.operands[k], b.operands[k], loop)))
        return false;
    return true;
  }

  const ir::Graph& graph_;
  const ir::Index index_;
  const std::vector<ir::Loop> loops_;
  std::map<const Value*, const Op*> first_;  // of rows of a first round
  std::set<const Value*> left_;              // by first rounds
  std::map<std::pair<const Value*, const Value*>, bool> same_;
};

}  // namespace

std::string check_rounds(const ir::Graph& graph) {
  const bool any = std::ranges::any_of(graph.ops(), [](const auto& op) { return has_rounds(*op); });
  return any ? Checker(graph).check() : "";
}

}  // namespace sfsdp::plan
