// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/fuse/join_products.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/index.h"
#include "sfsdp/ir/moves.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/passes/analysis/same_input.h"

namespace sfsdp::passes {
namespace {

using ir::Graph, ir::Op, ir::Value;
using Ops = std::vector<Op*>;

// A weight [n, k] as a part of a unit's buffer.
struct Part {
  Value* flat = nullptr;
  int64_t offset = 0;
};

std::optional<Part> part_of(const Value* weight) {
  const Op& view = *weight->producer();
  if (!view.is("view") || weight->type().dims.size() != 2) return std::nullopt;
  return Part{view.operands[0], view.attr_or<int64_t>("offset", 0)};
}

// Runs of at least two of `ops` whose weights (operand 1) lie one after the other, by offset.
std::vector<Ops> runs_of(const Ops& ops, Metrics& metrics) {
  struct Placed {
    size_t unit;  // in the order in which units are read: the pass is to be deterministic
    Part part;
    Op* op;
  };
  std::vector<Placed> placed;
  std::map<const Value*, size_t> units;
  for (Op* op : ops) {
    const auto part = op->operands.size() == 2 ? part_of(op->operands[1]) : std::nullopt;
    if (part)
      placed.push_back({units.emplace(part->flat, units.size()).first->second, *part, op});
    else
      metrics.add(op->operands.size() == 2 ? "left_apart" : "left_bias", 1);
  }
  std::ranges::stable_sort(placed, {}, [](const Placed& p) { return std::pair(p.unit, p.part.offset); });
  std::vector<Ops> runs;
  for (size_t i = 0; i < placed.size(); ++i) {
    const Value* weight = placed[i].op->operands[1];
    const auto follows = [&](const Placed& before) {
      const ir::Type& type = before.op->operands[1]->type();
      return before.part.flat == placed[i].part.flat && type.dims[1].size == weight->type().dims[1].size &&
             before.part.offset + type.numel() == placed[i].part.offset;
    };
    if (i == 0 || !follows(placed[i - 1])) runs.emplace_back();
    runs.back().push_back(placed[i].op);
  }
  for (const Ops& run : runs)
    if (run.size() == 1) metrics.add("left_apart", 1);
  std::erase_if(runs, [](const Ops& run) { return run.size() < 2; });
  return runs;
}

class Joiner {
 public:
  Joiner(Graph& graph, Metrics& metrics) : graph_(graph), metrics_(metrics), index_(graph) {
    for (const auto& op : graph.ops()) key_[op.get()] = 2 * static_cast<int64_t>(index_.position(op.get()));
  }

  bool run() {
    for (const Ops& ops : ops_of_one_input(graph_, "linear", 0))
      for (const Ops& run : runs_of(ops, metrics_)) join_forward(run);
    for (const Ops& ops : ops_of_one_input(graph_, "linear_dw", 1)) join_weight_gradients(ops);
    join_input_gradients();
    if (instead_of_.empty()) return false;
    for (const auto& op : graph_.ops())
      if (const auto found = instead_of_.find(op->bwd_of); found != instead_of_.end()) op->bwd_of = found->second;
    graph_.replace_uses(replaced_);
    ir::order_by(graph_, [&](const Op& op) { return key_.at(&op); });
    erase();
    return true;
  }

 private:
  // The joined op, where `at` stands; each of `replaced` has one of its results.
  Op* make(const char* opcode, std::vector<Value*> operands, const Ops& replaced, const Op& at) {
    std::vector<Graph::NewResult> results;
    for (const Op* op : replaced) results.push_back({concat(op->result()->name(), ".joined"), op->result()->type()});
    Op* joined = graph_.add(opcode, std::move(operands), std::move(results));
    joined->section = at.section;
    joined->module_path = at.module_path;
    joined->bwd_of = at.bwd_of;
    key_[joined] = key_.at(&at);
    for (size_t i = 0; i < replaced.size(); ++i) {
      Value* result = joined->result(static_cast<int>(i));
      replaced_[replaced[i]->result()] = result;
      named_.emplace_back(result, replaced[i]->result()->name());
    }
    metrics_.add(opcode, 1);
    return joined;
  }

  void forget(const Ops& ops, Op* joined) {
    for (Op* op : ops) {
      instead_of_[op] = joined;
      dead_.insert(op);
      if (Op* weight = op->operands[1]->producer(); weight->is("view")) parts_.insert(weight);
    }
  }

  // The weights of a run as one view, made where `at` stands.
  Value* joined_weight(const Ops& run, const Op& at) {
    const Part part = *part_of(run[0]->operands[1]);
    ir::Type type = run[0]->operands[1]->type();
    for (size_t i = 1; i < run.size(); ++i) type.dims[0].size += run[i]->operands[1]->type().dims[0].size;
    Op* view = graph_.add("view", {part.flat}, {{concat(run[0]->operands[1]->name(), ".joined"), type}});
    view->attrs["offset"] = part.offset;
    view->section = at.section;
    view->module_path = at.module_path;
    key_[view] = key_.at(&at) - 1;
    return view->result();
  }

  const Op& first_of(const Ops& ops) const { return *index_.first_of(ops); }
  const Op& last_of(const Ops& ops) const {
    return **std::ranges::max_element(ops, {}, [&](const Op* op) { return index_.position(op); });
  }

  void join_forward(const Ops& run) {
    const Op& at = first_of(run);
    Op* joined = make("joined_linear", {at.operands[0], joined_weight(run, at)}, run, at);
    std::vector<int64_t> widths;
    for (const Op* op : run) {
      widths.push_back(op->operands[1]->type().dims[0].size);
      run_of_[op] = joined;
    }
    joined->attrs["widths"] = widths;
    forget(run, joined);
  }

  // Gradients of weights whose layers were joined, in the order of the weights.
  void join_weight_gradients(const Ops& ops) {
    std::map<Op*, Ops> by_run;
    for (Op* op : ops)
      if (const auto run = run_of_.find(op->bwd_of); run != run_of_.end()) by_run[run->second].push_back(op);
    for (const auto& [forward, group] : ordered(by_run)) {
      if (group.size() < 2) continue;
      const Op& at = last_of(group);
      std::vector<Value*> operands;
      for (const Op* op : group) operands.push_back(op->operands[0]);
      operands.push_back(at.operands[1]);
      Op* joined = make("joined_linear_dw", std::move(operands), group, at);
      joined->bwd_of = forward;
      forget(group, joined);
    }
  }

  // By where their first op stands: the map's order is that of addresses.
  std::vector<std::pair<Op*, Ops>> ordered(const std::map<Op*, Ops>& by_run) const {
    std::vector<std::pair<Op*, Ops>> groups(by_run.begin(), by_run.end());
    std::ranges::sort(groups, {}, [&](const auto& group) { return index_.position(group.second[0]); });
    return groups;
  }

  void join_input_gradients() {
    std::map<Op*, Ops> by_run;
    for (const auto& op : graph_.ops())
      if (op->is("linear_dx"))
        if (const auto run = run_of_.find(op->bwd_of); run != run_of_.end()) by_run[run->second].push_back(op.get());
    for (const auto& [forward, terms] : ordered(by_run)) {
      if (terms.size() < 2) continue;
      Metrics unused;
      const std::vector<Ops> runs = runs_of(terms, unused);
      const auto sum = runs.size() == 1 && runs[0].size() == terms.size() ? sum_of(runs[0]) : std::nullopt;
      if (!sum) {
        metrics_.add("left_sum", 1);
        continue;
      }
      std::vector<Value*> operands;
      for (const Op* op : runs[0]) operands.push_back(op->operands[0]);
      operands.push_back(joined_weight(runs[0], *sum->last));
      Op* joined = make("joined_linear_dx", std::move(operands), {sum->last}, *sum->last);
      joined->attrs["order"] = sum->order;
      joined->bwd_of = forward;
      forget(sum->adds, joined);
      forget(runs[0], joined);
    }
  }

  struct Sum {
    Op* last = nullptr;          // the sum of all
    Ops adds;                    // all of its additions
    std::vector<int64_t> order;  // in which the terms are added
  };

  // The chain of additions of all terms and nothing else: ((a + b) + c) …
  std::optional<Sum> sum_of(const Ops& terms) const {
    std::unordered_map<const Value*, int64_t> number;
    for (size_t i = 0; i < terms.size(); ++i) number[terms[i]->result()] = static_cast<int64_t>(i);
    Sum sum;
    const Value* so_far = nullptr;
    for (const Op* term : by_position(terms)) {
      const Op* reader = index_.only_reader(term->result());
      if (!reader || !reader->is("aten.add.Tensor") || reader->has_attr("alpha")) return std::nullopt;
    }
    for (Op* add : additions_of(terms)) {
      for (const Value* operand : add->operands) {
        if (operand == so_far) continue;
        const auto found = number.find(operand);
        if (found == number.end()) return std::nullopt;
        sum.order.push_back(found->second);
        number.erase(found);
      }
      if (so_far && index_.only_reader(so_far) != add) return std::nullopt;
      so_far = add->result();
      sum.last = add;
      sum.adds.push_back(add);
    }
    if (!number.empty()) return std::nullopt;
    return sum;
  }

  Ops by_position(Ops ops) const {
    std::ranges::sort(ops, {}, [&](const Op* op) { return index_.position(op); });
    return ops;
  }

  Ops additions_of(const Ops& terms) const {
    Ops adds;
    for (const Op* term : terms)
      for (Op* reader : index_.readers(term->result()))
        if (std::ranges::find(adds, reader) == adds.end()) adds.push_back(reader);
    return by_position(adds);
  }

  // What was joined, and views of single weights that nobody reads now.
  void erase() {
    std::set<const Value*> read;
    for (const auto& op : graph_.ops())
      if (!dead_.contains(op.get())) read.insert(op->operands.begin(), op->operands.end());
    std::vector<Op*> dead;
    for (const auto& op : graph_.ops())
      if (dead_.contains(op.get()) || (parts_.contains(op.get()) && !read.contains(op->result())))
        dead.push_back(op.get());
    std::ranges::reverse(dead);
    graph_.erase(dead);
    for (const auto& [value, name] : named_) graph_.rename(value, name);
  }

  Graph& graph_;
  Metrics& metrics_;
  const ir::Index index_;
  std::unordered_map<const Op*, int64_t> key_;
  std::map<Value*, Value*> replaced_;
  std::unordered_map<const Op*, Op*> run_of_, instead_of_;
  std::set<const Op*> dead_, parts_;
  std::vector<std::pair<Value*, std::string>> named_;
};

}  // namespace

bool join_products(Graph& graph, PassContext& ctx) { return Joiner(graph, ctx.metrics).run(); }

}  // namespace sfsdp::passes
