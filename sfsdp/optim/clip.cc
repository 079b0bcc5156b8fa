// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/optim/clip.h"

#include <algorithm>
#include <string>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/axis_attr.h"

namespace sfsdp::step {

using ir::DType, ir::Graph, ir::Op, ir::Section, ir::Type, ir::Value;

namespace {

Value* add(ir::Builder& build, Section section, const std::string& opcode, std::vector<Value*> operands, Type type,
           const std::string& hint, ir::Attrs attrs = {}) {
  return build.at_end(section).value(opcode, std::move(operands), std::move(type), hint, std::move(attrs));
}

Value* reduce_over_data(ir::Builder& build, Value* value, const Strategy& strategy) {
  const auto axes = strategy.data_axes();
  if (axes.empty()) return value;
  return add(build, Section::Clip, "all_reduce", {value}, value->type(), value->name() + ".all",
             {{"axis", ir::axis_attr(axes)}});
}

}  // namespace

Loss reduce_loss(Graph& graph, ir::Builder& build, const Strategy& strategy) {
  SFSDP_CHECK(!graph.outputs.empty(), "a step without a loss");
  Value* value = graph.outputs[0];
  const bool counted = graph.outputs.size() > 1;
  const double share = 1.0 / static_cast<double>(strategy.data_ranks() * graph.micro_batches);
  const auto accumulated = [&](Value* v, const std::string& hint) {
    if (v == value && ir::size_in_bytes(v->type().dtype) < 4)
      v = add(build, Section::Loss, "cast", {v}, Type::tensor(DType::f32, {}), hint + ".f32");
    return graph.micro_batches == 1 ? v : add(build, Section::Loss, "accumulate", {v}, v->type(), hint);
  };
  value = accumulated(value, "loss.sum");
  if (!counted) {
    if (share != 1.0)
      value = add(build, Section::Clip, "mul_scalar", {value}, value->type(), "loss.share", {{"value", share}});
    return {reduce_over_data(build, value, strategy), nullptr};
  }
  Value* count = accumulated(graph.outputs[1], "loss.count");
  if (count->type().dtype != DType::f64)
    count = add(build, Section::Clip, "cast", {count}, Type::tensor(DType::f64, {}), "loss.count");
  count = reduce_over_data(build, count, strategy);
  value = reduce_over_data(build, value, strategy);
  return {add(build, Section::Clip, "div", {value, count}, Type::tensor(DType::f64, {}), "loss.mean"), count};
}

Value* append_norm(ir::Builder& build, const std::vector<Op*>& gradients, const Strategy& strategy, Value* count) {
  std::vector<Value*> operands;
  std::vector<bool> replicated, boxed;
  bool any_sharded = false, any_boxed = false;
  for (Op* g : gradients) {
    operands.push_back(g->result());
    replicated.push_back(g->attr<bool>("replicated"));
    boxed.push_back(g->has_attr("boxed"));
    any_sharded |= !replicated.back();
    any_boxed |= boxed.back();
    g->attrs.erase("replicated");
    g->attrs.erase("boxed");
  }
  ir::Attrs attrs = {{"replicated", replicated}};
  if (any_boxed) {
    attrs["boxed"] = boxed;
    attrs["boxes"] = strategy.axis_size("ep");
  }
  AxisList axes = any_sharded ? strategy.shard_axes() : AxisList{};
  const Type whole = Type::tensor(DType::f64, {static_cast<int64_t>(operands.size())});
  Type part = whole;
  AxisList summed = any_sharded ? strategy.token_axes() : AxisList{};  // the model axes that say so in types
  if (const AxisList model = strategy.tensor_axes(); !model.empty()) {
    std::vector<bool> once;  // what no model axis cuts, all of their ranks have
    for (const Op* g : gradients)
      once.push_back(g->result()->type().placement_on(model[0]) == ir::Placement::replicate());
    attrs["counted_once"] = once;
    attrs["inner"] = strategy.mesh.group_size(model);
    axes.insert(axes.end(), model.begin(), model.end());
    summed.insert(summed.end(), model.begin(), model.end());
  }
  if (!summed.empty()) part.placements = {{ir::Placement::partial(ir::ReduceOp::Sum), summed}};
  if (!axes.empty()) attrs["axis"] = ir::axis_attr(axes);
  Value* value =
      build.at_end(Section::Clip).list("sum_squares", operands, part, "grad.squares", std::move(attrs))->result();
  if (!axes.empty())
    value =
        add(build, Section::Clip, "all_reduce", {value}, whole, "grad.squares.all", {{"axis", ir::axis_attr(axes)}});
  std::vector<Value*> inputs = {value};
  if (count) inputs.push_back(count);
  return add(build, Section::Clip, "grad_norm", inputs, Type::tensor(DType::f64, {}), "grad_norm");
}

Value* append_coefficient(ir::Builder& build, const std::vector<Op*>& gradients, Value* norm, Value* count,
                          double max_norm) {
  if (max_norm <= 0 && !count) return nullptr;
  std::vector<Value*> inputs = {norm};
  if (count) inputs.push_back(count);
  const bool f64 = std::ranges::any_of(gradients, [](Op* g) { return g->result()->type().dtype == DType::f64; });
  return add(build, Section::Clip, "clip_coefficient", inputs, Type::tensor(f64 ? DType::f64 : DType::f32, {}),
             "clip_coefficient", {{"max_norm", max_norm}});
}

}  // namespace sfsdp::step
