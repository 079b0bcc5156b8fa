// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/partition.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/builder.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/parallel/localise.h"
#include "sfsdp/parallel/op_cuts.h"
#include "sfsdp/passes/pass_manager.h"

namespace sfsdp::parallel {
namespace {

using ir::Graph, ir::Op, ir::Placement, ir::Value;

constexpr Placement kWhole = Placement::replicate(), kSum = Placement::partial(ir::ReduceOp::Sum);
constexpr double kImpossible = std::numeric_limits<double>::infinity();

// Bytes that pass a rank. A part cannot be made of a whole, nor of another part, yet.
double cost_of(const Value& value, const Placement& from, const Placement& to) {
  if (from == to) return 0;
  if (to != kWhole) return kImpossible;
  return static_cast<double>(value.type().bytes()) * (from == kSum ? 2 : 1);
}

std::string text_of(const Placement& placement) {
  if (placement.kind == Placement::Kind::Shard) return concat("cut in dimension ", placement.dim);
  return placement == kSum ? "a summand" : "whole";
}

class Partitioner {
 public:
  Partitioner(Graph& graph, const MeshAxis& axis, const std::map<std::string, int64_t>& cuts)
      : graph_(graph), axis_(axis), cuts_(cuts), build_(graph) {}

  PartitionReport run() {
    std::vector<Op*> ops;
    for (const auto& op : graph_.ops()) ops.push_back(op.get());
    for (Op* op : ops) visit(*op);
    for (Value*& output : graph_.outputs) output = lying(output, kWhole, nullptr);
    for (ir::Carry& carry : graph_.carries) carry.next = lying(carry.next, placement_of(carry.current), nullptr);
    build_.apply();
    localise(graph_, axis_, placements_);
    return report_;
  }

 private:
  Placement placement_of(const Value* value) const {
    const auto found = placements_.find(value);
    return found == placements_.end() ? kWhole : found->second;
  }

  void visit(Op& op) {
    if (op.is("param")) {
      const auto cut = cuts_.find(op.attr<std::string>("name"));
      if (cut != cuts_.end()) placements_[op.result()] = Placement::shard(cut->second);
      return;
    }
    if (ir::is_root(op)) return;
    if (op.is("gradient")) return gradient(op);
    const OpCut way = choose(op);
    for (size_t k = 0; k < op.operands.size(); ++k)
      if (op.operands[k] && way.operands[k]) op.operands[k] = lying(op.operands[k], *way.operands[k], &op);
    for (size_t r = 0; r < way.results.size(); ++r)
      if (way.results[r] != kWhole) placements_[op.results()[r].get()] = way.results[r];
  }

  OpCut choose(const Op& op) const {
    std::vector<Placement> operands;
    for (const Value* operand : op.operands) operands.push_back(operand ? placement_of(operand) : kWhole);
    check_has_rule(op, operands);
    std::optional<OpCut> best;
    double least = kImpossible;
    for (OpCut& way : cuts_of(op, operands, axis_.size)) {
      double cost = 0;
      for (size_t k = 0; k < operands.size(); ++k)
        if (op.operands[k] && way.operands[k]) cost += cost_of(*op.operands[k], operands[k], *way.operands[k]);
      if (cost >= least) continue;
      least = cost;
      best = std::move(way);
    }
    SFSDP_CHECK(best, op.opcode, " cannot be cut, nor left whole");
    return std::move(*best);
  }

  void check_has_rule(const Op& op, const std::vector<Placement>& operands) const {
    if (has_rule(op)) return;
    for (size_t k = 0; k < operands.size(); ++k)
      if (operands[k].kind == Placement::Kind::Shard)
        throw UserError(concat("tensor_parallel: ", ir::opcode_at(op), " reads %", op.operands[k]->name(), ", which is ",
                               text_of(operands[k]), " over ", axis_.name,
                               ", and nothing says how this op may be cut\n  expected an access map in its row of ",
                               ir::is_aten(op.opcode) ? "sfsdp/ir/atenset.def" : "sfsdp/ir/opset.def",
                               ", or no rule for the weights of ", op.module_path.empty() ? "this module" : op.module_path));
  }

  void gradient(Op& op) {
    const auto& param = op.attr<std::string>("param");
    const auto cut = cuts_.find(param);
    const Placement wanted = cut == cuts_.end() ? kWhole : Placement::shard(cut->second);
    const Placement got = placement_of(op.operands[0]);
    if (cost_of(*op.operands[0], got, wanted) == kImpossible)
      throw UserError(concat("tensor_parallel: the gradient of ", param, " comes out ", text_of(got), " of ",
                             ir::opcode_at(*op.operands[0]->producer()), ", and ", param, " is ", text_of(wanted), " over ",
                             axis_.name, "\n  expected no rule for it, or one for the weights that are used with it"));
    op.operands[0] = lying(op.operands[0], wanted, &op);
    if (wanted != kWhole) placements_[op.result()] = wanted;
  }

  // The value as it has to lie, made where it is first asked for.
  Value* lying(Value* value, const Placement& wanted, Op* reader) {
    const Placement from = placement_of(value);
    if (from == wanted) return value;
    SFSDP_CHECK(wanted == kWhole, "%", value->name(), " is ", text_of(from), ", and is to be ", text_of(wanted));
    Value*& made = whole_[value];
    if (made) return made;
    ir::Type type = value->type();
    type.strides.clear();
    ir::Attrs attrs = {{"axis", axis_.name}};
    if (from != kSum) attrs["dim"] = from.dim;
    const auto place = (reader ? build_.before(reader) : build_.after(value->producer())).like(*value->producer());
    const auto here = reader ? place.in(reader->section) : place;
    made = here.value(from == kSum ? "all_reduce" : "all_gather", {value}, type,
                      value->name() + (from == kSum ? ".sum" : ".whole"), std::move(attrs));
    ++(from == kSum ? report_.all_reduces : report_.all_gathers);
    return made;
  }

  Graph& graph_;
  const MeshAxis axis_;
  const std::map<std::string, int64_t>& cuts_;
  ir::Builder build_;
  Placements placements_;  // of what is not whole
  std::unordered_map<const Value*, Value*> whole_;
  PartitionReport report_;
};

// Products that are added up over the axis, with a bias: it comes after the sum, as each rank would add it once.
void take_biases_apart(Graph& graph, const std::map<std::string, int64_t>& cuts) {
  ir::Builder build(graph);
  std::unordered_map<const Op*, const Op*> product_of;
  for (const auto& op : graph.ops()) {
    if (!op->is("linear") || op->operands.size() != 3 || !op->operands[1]->producer()->is("param")) continue;
    const auto cut = cuts.find(op->operands[1]->producer()->attr<std::string>("name"));
    if (cut == cuts.end() || cut->second != 1) continue;
    const auto place = build.before(op.get());
    Value* old = op->result();
    Value* product = place.value("linear", {op->operands[0], op->operands[1]}, old->type(), old->name() + ".product");
    build.take_place(old, place.value("aten.add.Tensor", {product, op->operands[2]}, old->type(), "biased"));
    product_of[op.get()] = product->producer();
  }
  for (const auto& op : graph.ops())
    if (const auto found = product_of.find(op->bwd_of); found != product_of.end()) op->bwd_of = found->second;
  std::vector<Op*> old;
  for (const auto& op : graph.ops())
    if (product_of.contains(op.get())) old.push_back(op.get());
  build.erase(old);
  build.apply();
}

}  // namespace

PartitionReport partition(Graph& graph, const MeshAxis& axis, const std::map<std::string, int64_t>& cuts) {
  take_biases_apart(graph, cuts);
  return Partitioner(graph, axis, cuts).run();
}

void apply_tensor_parallel(Graph& graph, const Strategy& strategy) {
  const AxisList axes = strategy.model_axes();
  if (axes.empty()) return;
  const std::array calls = {passes::make_call("canonicalise"), passes::make_call("fold_views"),
                            passes::make_call("merge_duplicates")};
  passes::run_passes(graph, calls, {.checks = passes::Checks::RegisteredPasses});
  graph.mesh = strategy.mesh.axes();
  for (const std::string& axis : axes) {
    const int64_t ranks = strategy.mesh.size(axis);
    partition(graph, {axis, ranks}, find_cuts(graph, strategy.tensor, ranks));
  }
}

}  // namespace sfsdp::parallel
