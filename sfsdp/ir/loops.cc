// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/loops.h"

#include <algorithm>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/side_table.h"

namespace sfsdp::ir {
namespace {

class Checker {
 public:
  explicit Checker(const Graph& graph) : graph_(graph), loops_(loops_of(graph)), position_(graph) {
    for (size_t i = 0; i < graph.ops().size(); ++i) position_[graph.ops()[i].get()] = i;
  }

  std::vector<std::pair<const Op*, Diagnostic>> check() {
    check_pairs();
    if (!found_.empty()) return std::move(found_);
    for (const Loop& loop : loops_) {
      check_carried(loop);
      for (size_t i = loop.first + 1; i < loop.last; ++i) check_body(loop, *graph_.ops()[i]);
    }
    if (!loops_.empty()) check_scopes();
    return std::move(found_);
  }

 private:
  void report(const Op& op, std::string message, std::string detail) {
    found_.emplace_back(&op, Diagnostic{.where = {}, .message = std::move(message), .detail = std::move(detail)});
  }

  void check_pairs() {
    const Op* open = nullptr;
    for (const auto& op : graph_.ops()) {
      if (is_loop(*op)) {
        if (open)
          report(*op, concat(name_of(*op), " begins in the body of ", name_of(*open)),
                 "expected loops that do not stand in others; end that one first");
        open = op.get();
      } else if (op->is("end")) {
        if (!open) report(*op, concat(name_of(*op), " ends no loop"), "expected a loop or a when above");
        open = nullptr;
      }
    }
    if (open) report(*open, concat(name_of(*open), " has no end"), "expected an op `end` below, in the same section");
  }

  void check_carried(const Loop& loop) {
    if (loop.end->section != loop.begin->section || is_once(*loop.end) != is_once(*loop.begin))
      report(*loop.end, concat(name_of(*loop.end), " stands in another part of the step than ", name_of(*loop.begin)),
             "expected both in one section, with the same once=");
    const auto carried = loop.begin->results();
    if (loop.end->operands.size() != carried.size())
      return report(*loop.end,
                    concat(name_of(*loop.end), " leaves ", loop.end->operands.size(), " values, ", name_of(*loop.begin),
                           " carries ", carried.size()),
                    "expected as many, in the same order");
    for (size_t k = 0; k < carried.size(); ++k) {
      const Value& next = *loop.end->operands[k];
      const Type &a = carried[k]->type(), &b = next.type();
      if (a.kind != b.kind || a.dtype != b.dtype || a.dims != b.dims)
        report(*loop.end, concat("a trip begins with %", carried[k]->name(), " and leaves %", next.name()),
               concat("expected ", a, ", got ", b));
      const size_t made = position_[next.producer()];
      if (made < loop.first || made > loop.last)
        report(*loop.end, concat(name_of(*loop.end), " leaves %", next.name(), ", which the body does not make"),
               "expected a result of the body, or what the trip began with");
    }
  }

  void check_body(const Loop& loop, const Op& op) {
    const auto refuse = [&](const std::string& what, const std::string& expected) {
      report(op, concat(name_of(op), " in the body of ", name_of(*loop.begin), ' ', what), expected);
    };
    if (is_root(op)) return refuse("is given to the program", "expected it above all sections");
    if (op.section != loop.begin->section || is_once(op) != is_once(*loop.begin))
      refuse("stands in another part of the step", "expected the whole body in one section, with the same once=");
    if (op.is("accumulate"))
      refuse("adds up over micro-batches, once a trip", "expected the sum after the loop, or add_into");
    if (draws(op)) refuse("would draw the same numbers in each trip", "expected it before the loop");
    if (is_wait(op) && !loop.has(position_[op.operands[0]->producer()]))
      refuse(concat("waits in each trip for ", name_of(*op.operands[0]->producer()), ", which starts outside"),
             "expected start and wait on the same side of the loop's borders");
    for (const int64_t index : donated_operands(op)) {
      if (index < 0 || index >= std::ssize(op.operands) || !op.operands[static_cast<size_t>(index)]) continue;
      const Value* given = storage_of(op.operands[static_cast<size_t>(index)]);
      if (position_[given->producer()] < loop.first)
        refuse(concat("gives away %", given->name(), ", which the next trip reads"),
               "expected memory that the body makes, or that the loop carries");
    }
  }

  // What a body makes is read in it alone, and by its end.
  void check_scopes() {
    const auto check = [&](const Op& at, size_t position, const Value& value, const std::string& reader) {
      // A body may be empty; what its loop begins with lives in it all the same.
      const size_t made = position_[value.producer()];
      const Loop* home = is_loop(*value.producer()) ? &*std::ranges::find(loops_, value.producer(), &Loop::begin)
                                                    : loop_around(loops_, made);
      if (!home || (home->first < position && position <= home->last)) return;
      report(at, concat(reader, " reads %", value.name(), ", which lives in one trip of ", name_of(*home->begin)),
             "expected a result of its end; carry it");
    };
    for (size_t i = 0; i < graph_.ops().size(); ++i)
      for (const Value* operand : graph_.ops()[i]->operands)
        if (operand) check(*graph_.ops()[i], i, *operand, name_of(*graph_.ops()[i]));
    const size_t end = graph_.ops().size();
    for (const Value* output : graph_.outputs) check(*output->producer(), end, *output, "return");
    for (const Carry& carry : graph_.carries) check(*carry.next->producer(), end, *carry.next, "carry");
    for (const Loop& loop : loops_)
      for (size_t i = loop.first; i < loop.last; ++i)
        if (const Op& op = *graph_.ops()[i]; is_start(op)) check_waited(loop, op);
  }

  void check_waited(const Loop& loop, const Op& start) {
    for (size_t i = loop.first; i < loop.last; ++i) {
      const Op& op = *graph_.ops()[i];
      if (is_wait(op) && op.operands[0]->producer() == &start) return;
    }
    report(start,
           concat(name_of(start), " starts in the body of ", name_of(*loop.begin), ", which does not wait for it"),
           "expected start and wait on the same side of the loop's borders");
  }

  const Graph& graph_;
  const std::vector<Loop> loops_;
  OpTable<size_t> position_;
  std::vector<std::pair<const Op*, Diagnostic>> found_;
};

}  // namespace

bool is_loop(const Op& op) { return op.is("loop", "when"); }

int64_t most_trips(const Op& loop) { return loop.is("when") ? 1 : loop.attr<int64_t>("at_most"); }

std::vector<Loop> loops_of(const Graph& graph) {
  std::vector<Loop> loops;
  Loop open;
  for (size_t i = 0; i < graph.ops().size(); ++i) {
    const Op* op = graph.ops()[i].get();
    if (is_loop(*op)) {
      open = {.begin = op, .first = i};
    } else if (op->is("end") && open.begin) {
      open.end = op;
      open.last = i;
      loops.push_back(open);
      open = {};
    }
  }
  return loops;
}

const Loop* loop_around(const std::vector<Loop>& loops, size_t position) {
  const auto after = std::ranges::upper_bound(loops, position, {}, &Loop::first);
  if (after == loops.begin()) return nullptr;
  const Loop& loop = *std::prev(after);
  return loop.has(position) ? &loop : nullptr;
}

std::vector<std::pair<const Op*, Diagnostic>> check_loops(const Graph& graph) { return Checker(graph).check(); }

}  // namespace sfsdp::ir
