// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/verify/axis_states.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/access.h"
#include "sfsdp/ir/by_rank.h"
#include "sfsdp/ir/loops.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/placement.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/ir/side_table.h"
#include "sfsdp/mesh/model_axis.h"

namespace sfsdp::plan {
namespace {

using ir::Graph, ir::Op, ir::Value;

using State = ir::Placement::Kind;  // which dimension a shard is cut in plays no part here

const char* to_text(State state) {
  switch (state) {
    case State::Replicate: return "the same on all ranks";
    case State::Shard: return "a shard";
    case State::Partial: return "a part of a sum";
    case State::Own: return "each rank's own";
    case State::Rows: return "a rank's rows";
  }
  return "";
}

// Element i of each result comes from element i of each operand, or what is moved is a part of it: a shard's is a shard.
bool is_elementwise(const Op& op) {
  if (ir::has_flag(op, ir::kMoves)) return !op.has_attr("ranks");
  const ir::OpAccess access(op);
  for (size_t k = 0; k < op.operands.size(); ++k)
    if (const ir::Reads reads = access.reads(k).reads; reads != ir::Reads::Element && reads != ir::Reads::Nothing)
      return false;
  return true;
}

// One axis at a time.
class Checker {
 public:
  Checker(const Graph& graph, std::string axis)
      : graph_(graph),
        axis_(std::move(axis)),
        loops_(ir::loops_of(graph)),
        states_(graph, State::Replicate),
        agreed_(graph, 0) {}

  std::string check() {
    // Buffers that become Own make what reads them Own: at most as many rounds as there are carries, of the step and of loops,
    // each of which changes twice.
    size_t rounds = 1 + graph_.carries.size();
    for (const ir::Loop& loop : loops_) rounds += 2 * loop.begin->results().size();
    for (size_t round = 0; round < rounds; ++round) {
      states_ = ir::ValueTable<State>(graph_, State::Replicate);
      for (size_t i = 0; i < graph_.ops().size(); ++i) {
        std::string wrong = visit(*graph_.ops()[i], ir::loop_around(loops_, i));
        if (!wrong.empty()) return wrong;
        note_agreement(*graph_.ops()[i]);
      }
      const bool carried = carry_local_buffers();
      if (!carry_through_loops() && !carried) break;
    }
    return check_ends();
  }

 private:
  State state_of(const Value* value) const { return states_[value]; }
  void set(const Op& op, State state) {
    for (const auto& result : op.results()) states_[result.get()] = state;
  }
  std::string error(const Op& op, const std::string& what, const std::string& cure) const {
    return concat("over ", axis_, ": ", what, "\n    ", ir::print(op), "\n  ", cure);
  }

  State leaf(const Op& op) const {
    const ir::Type& type = op.result()->type();
    const State named = type.placement_on(axis_).kind;
    if (named == State::Partial || local_.contains(op.result()) || op.is("constant")) return State::Own;
    return named;
  }

  // Whether all ranks have the same number there for certain. That is less than a State says: what forward computes of numbers that
  // all ranks have is the same on all of them too, but each rank's own to whoever adds up.
  void note_agreement(const Op& op) {
    const auto agreed = [&](const Value* value) { return !value || agreed_[value] != 0; };
    const bool here = over_this_axis(op);
    for (size_t r = 0; r < op.results().size(); ++r) {
      const Value* result = op.results()[r].get();
      bool same = ir::is_pure(op) && !depends_on_place(op) && !(here && !ir::is_collective(op)) &&
                  std::ranges::all_of(op.operands, agreed);
      if (ir::is_root(op)) same = leaf(op) == State::Replicate && !local_.contains(result);
      if (op.is("constant")) same = false;
      if (ir::is_collective(op) && here) same = ir::collective_kind(op) != "reduce_scatter" && !is_exchange(op);
      if (ir::is_loop(op)) same = agreed(op.operands[0]) && agreed(op.operands[r + 1]) && !differing_.contains(result);
      if (op.is("end")) same = agreed(loop_of(op).begin->result(static_cast<int>(r))) && agreed(op.operands[r]);
      agreed_[result] = same ? 1 : 0;
    }
  }

  const ir::Loop& loop_of(const Op& end) const { return *std::ranges::find(loops_, &end, &ir::Loop::end); }

  // A trip begins with what stood before the loop, or with what the trip before has left.
  bool carry_through_loops() {
    bool changed = false;
    for (const ir::Loop& loop : loops_)
      for (size_t k = 0; k < loop.end->operands.size(); ++k) {
        const Value *carried = loop.begin->result(static_cast<int>(k)), *next = loop.end->operands[k];
        if (state_of(next) == State::Own && state_of(carried) == State::Replicate)
          changed |= local_.insert(carried).second;
        if (agreed_[next] == 0 && agreed_[carried] != 0) changed |= differing_.insert(carried).second;
      }
    return changed;
  }

  std::string begin_loop(const Op& loop) {
    for (size_t k = 0; k < loop.results().size(); ++k) {
      const State before = state_of(loop.operands[k + 1]);
      if (before == State::Shard && agreed_[loop.operands[0]] == 0)
        return error(loop, "a shard is made anew as often as each rank's own number says",
                     "expected a number of trips that is the same on all ranks");
      // Ranks that make other numbers of trips leave other numbers.
      const bool differs = agreed_[loop.operands[0]] == 0 || local_.contains(loop.results()[k].get());
      states_[loop.results()[k].get()] = before == State::Replicate && differs ? State::Own : before;
    }
    return "";
  }

  std::string end_loop(const Op& end) {
    const Op& begin = *loop_of(end).begin;
    for (size_t k = 0; k < end.results().size(); ++k) {
      const State before = state_of(begin.results()[k].get()), next = state_of(end.operands[k]);
      if ((before == State::Shard) != (next == State::Shard))
        return error(end,
                     concat("a trip begins with ", to_text(before), ", %", begin.results()[k]->name(), ", and leaves ",
                            to_text(next)),
                     "expected the same of both");
      states_[end.results()[k].get()] = before == State::Own ? before : next;
    }
    return "";
  }

  std::string visit(const Op& op, const ir::Loop* loop) {
    if (ir::is_loop(op)) return begin_loop(op);
    if (op.is("end")) return end_loop(op);
    if (loop && ir::is_collective(op) && over_this_axis(op) && agreed_[loop->begin->operands[0]] == 0)
      return error(op,
                   concat("it meets as often as %", loop->begin->operands[0]->name(),
                          " says, which may differ from rank to rank"),
                   "expected a number that all ranks have: reduce it (op=max), or gather what it is computed of");
    if (ir::is_root(op)) {
      set(op, leaf(op));
      return "";
    }
    bool any_own = false, any_shard = false, any_whole = false;
    for (const Value* operand : op.operands) {
      if (!operand) continue;
      any_own |= state_of(operand) == State::Own;
      any_shard |= state_of(operand) == State::Shard;
      any_whole |= state_of(operand) == State::Replicate;
    }
    if (ir::is_collective(op)) return collective(op);
    if (ir::is_update(op)) return update(op);
    if (op.is("sum_squares")) {
      const bool here = over_this_axis(op);
      if (any_own)
        return error(op, "a gradient that is not reduced goes into the norm", "expected reduced gradients; reduce it");
      if (any_shard && !here)
        return error(op, "squares of shards are summed as if they were the whole",
                     concat("expected axis=", axis_, ", and an all_reduce after it"));
      set(op, here ? State::Own : State::Replicate);
      return "";
    }
    if (any_shard && op.is("pack") && (any_whole || any_own || op.has_attr("ranks")))
      return error(op, "shards are packed with what is whole, or as if they were it",
                   "expected shards alone, without ranks=");
    if (any_shard && any_own)
      return error(op, "a shard meets values of each rank's own batch", "expected the whole parameter; gather it");
    if (any_shard && !is_elementwise(op))
      return error(op, "a shard is read as if it were the whole", "expected the whole; gather it");
    // What forward, loss and backward compute is a rank's own contribution, also where no batch is read: a count of
    // rows, a decay of weights, the share of the global loss's gradient that backward begins with.
    const bool begins_own = ir::is_repeated(op.section) && !any_shard && !ir::has_flag(op, ir::kMoves);
    // Where a view begins, or how many rows there are, may differ along the axis: a part of what all ranks have.
    set(op, any_own || begins_own ? State::Own : any_shard || depends_on_place(op) ? State::Shard : State::Replicate);
    return "";
  }

  bool depends_on_place(const Op& op) const {
    const auto axes = ir::coordinate_axes(op);
    return std::ranges::find(axes, axis_) != axes.end();
  }

  bool over_this_axis(const Op& op) const {
    const auto axes = ir::axes_of(op);
    return axes && std::ranges::find(*axes, axis_) != axes->end();
  }

  // All ranks give, and get, others.
  static bool is_exchange(const Op& op) {
    const std::string_view kind = ir::collective_kind(op);
    return kind == "all_to_all" || kind == "all_to_all_v" || kind == "permute";
  }

  std::string collective(const Op& op) {
    const State before = state_of(op.operands[0]);
    if (!over_this_axis(op)) {
      set(op, before);
      return "";
    }
    const auto kind = ir::collective_kind(op);
    if (is_exchange(op)) {
      if (before == State::Shard)
        return error(op, "parts of one whole are exchanged", "expected each rank's own, or what all have");
      set(op, State::Own);
      return "";
    }
    const bool sums = !op.has_attr("op") || op.attr<std::string>("op") == "sum";
    if (kind == "broadcast" || kind == "all_gather") {
      set(op, State::Replicate);
      return "";
    }
    if (sums && before == State::Replicate)
      return error(op, concat(kind, " sums what is ", to_text(before), ": every rank would count once"),
                   "expected each rank's own part; it is reduced already");
    if (before == State::Shard)
      return error(op, concat(kind, " of ", to_text(before), " adds up parts of one whole"), "expected own values");
    set(op, kind == "reduce_scatter" ? State::Shard : State::Replicate);
    return "";
  }

  std::string update(const Op& op) {
    const State param = state_of(op.operands[0]), g = state_of(op.operands[ir::gradient_operand(op)]);
    if (g != param)
      return error(
          op, concat("the gradient is ", to_text(g), ", the parameter ", to_text(param)),
          g == State::Own ? "expected a reduced gradient; reduce it over this axis" : "expected the same of both");
    if (op.has_attr("begins") && over_this_axis(op) != (param == State::Shard))
      return error(op, concat("its segments are those of ", param == State::Shard ? "a whole" : "a cut", " bucket"),
                   "expected axis= to name the axes that cut the parameter");
    for (size_t i = 0; i < op.operands.size(); ++i)
      if (const Value* operand = op.operands[i]; operand && state_of(operand) == State::Own)
        return error(op, concat("operand ", i, ", %", operand->name(), ", is ", to_text(State::Own)),
                     "expected what all ranks agree on");
    set(op, param);
    return "";
  }

  bool carry_local_buffers() {
    bool changed = false;
    for (const ir::Carry& carry : graph_.carries)
      if (carry.current->producer()->is("state") && state_of(carry.next) == State::Own &&
          state_of(carry.current) == State::Replicate)
        changed |= local_.insert(carry.current).second;
    return changed;
  }

  std::string check_ends() const {
    for (const Value* output : graph_.outputs)
      if (state_of(output) == State::Own)
        return error(*output->producer(),
                     concat("the step returns %", output->name(), ", which is ", to_text(State::Own)),
                     "expected what all ranks agree on; reduce it");
    for (const ir::Carry& carry : graph_.carries)
      if (state_of(carry.current) != state_of(carry.next))
        return error(*carry.next->producer(),
                     concat("%", carry.current->name(), " is ", to_text(state_of(carry.current)),
                            ", what the next step has in its place ", to_text(state_of(carry.next))),
                     "expected the same of both");
    return "";
  }

  const Graph& graph_;
  std::string axis_;
  std::vector<ir::Loop> loops_;
  ir::ValueTable<State> states_;
  ir::ValueTable<uint8_t> agreed_;          // all ranks have the same number
  std::unordered_set<const Value*> local_;  // what every rank writes by itself: buffers of a module, what loops carry
  std::unordered_set<const Value*> differing_;  // what trips before the last leave otherwise on some ranks
};

}  // namespace

std::string check_axis_states(const Graph& graph) {
  if (graph.view != Graph::View::Local) return "the program is that of all ranks\n  expected one rank's, view local";
  for (const ir::MeshAxis& axis : graph.mesh) {
    if (axis.size == 1 || is_model_axis(axis.name)) continue;
    if (std::string wrong = Checker(graph, axis.name).check(); !wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace sfsdp::plan
