// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/builder.h"

namespace sfsdp {

double learning_rate(const Optimizer& optimizer) {
  return std::visit([](const auto& o) { return o.lr; }, optimizer);
}

namespace {

void check_field(const char* name, double value, bool holds, const char* expected) {
  if (!holds || !std::isfinite(value))
    throw UserError(concat("compile: ", name, " = ", value, "\n  expected ", expected));
}

void check_at_least_0(const char* name, double value) {
  check_field(name, value, value >= 0, "a finite number of at least 0");
}

void check_decay(const char* name, double value) {
  check_field(name, value, value >= 0 && value < 1, "a number from 0 to below 1");
}

void check(const AdamW& o) {
  check_at_least_0("AdamW::lr", o.lr);
  check_decay("AdamW::beta1", o.beta1);
  check_decay("AdamW::beta2", o.beta2);
  check_field("AdamW::eps", o.eps, o.eps > 0, "a finite number above 0");
  check_at_least_0("AdamW::weight_decay", o.weight_decay);
}

void check(const SGD& o) {
  check_at_least_0("SGD::lr", o.lr);
  check_decay("SGD::momentum", o.momentum);
  check_at_least_0("SGD::weight_decay", o.weight_decay);
}

}  // namespace

void check_optimizer(const Optimizer& optimizer) {
  std::visit([](const auto& o) { check(o); }, optimizer);
}

namespace step {
namespace {

using ir::DType;
using ir::Graph;
using ir::Op;
using ir::Section;
using ir::Type;
using ir::Value;

Value* add(ir::Builder& build, Section section, const std::string& opcode, std::vector<Value*> operands, Type type,
           const std::string& hint, ir::Attrs attrs = {}) {
  return build.at_end(section).value(opcode, std::move(operands), std::move(type), hint, std::move(attrs));
}

ir::Attr axis_attr(const std::vector<std::string>& axes) {
  if (axes.size() == 1) return axes[0];
  return axes;
}

Value* reduce_over_data(ir::Builder& build, Value* value, const Strategy& strategy) {
  const auto axes = strategy.data_axes();
  if (axes.empty()) return value;
  return add(build, Section::Clip, "all_reduce", {value}, value->type(), value->name() + ".all",
             {{"axis", axis_attr(axes)}});
}

struct Loss {
  Value* mean = nullptr;
  Value* count = nullptr;  // of the global batch, f64[]; null where the loss is a mean already
};

// Sums over micro-batches and ranks. A mean becomes a mean of equal shares, a sum is divided by the global count.
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
  return {add(build, Section::Clip, "div", {value, count}, value->type(), "loss.mean"), count};
}

Value* append_norm(ir::Builder& build, const std::vector<Op*>& gradients, const Strategy& strategy, Value* count) {
  std::vector<Value*> operands;
  std::vector<bool> replicated;
  bool any_sharded = false;
  for (Op* g : gradients) {
    operands.push_back(g->result());
    replicated.push_back(g->attr<bool>("replicated"));
    any_sharded |= !replicated.back();
    g->attrs.erase("replicated");
  }
  ir::Attrs attrs = {{"replicated", replicated}};
  const ir::Attr axis = axis_attr(strategy.shard_axes());
  if (any_sharded) attrs["axis"] = axis;
  const auto n = static_cast<int64_t>(operands.size());
  Value* value = build.at_end(Section::Clip)
                     .list("sum_squares", operands, Type::tensor(DType::f64, {n}), "grad.squares", std::move(attrs))
                     ->result();
  if (any_sharded)
    value = add(build, Section::Clip, "all_reduce", {value}, value->type(), "grad.squares.all", {{"axis", axis}});
  std::vector<Value*> inputs = {value};
  if (count) inputs.push_back(count);
  return add(build, Section::Clip, "grad_norm", inputs, Type::tensor(DType::f64, {}), "grad_norm");
}

// At the head of the graph.
Value* add_state(ir::Builder& build, const std::string& name, Type type, Op* first) {
  return build.before(first).in(Section::Init).at("").value("state", {}, std::move(type), name, {{"name", name}});
}

// Builds one parameter's update; returns the optimizer's tensors for it.
struct UpdateContext {
  Graph& graph;
  ir::Builder& build;
  Op* first_op;
  Value* step = nullptr;
  Value* non_finite = nullptr;
  std::vector<OptimizerState>& states;

  Value* moment(const Op& param, const std::string& kind) {
    const std::string name = param.attr<std::string>("name") + "." + kind;
    const Type type = param.result()->type();
    states.push_back({name, param.attr<std::string>("name")});
    return add_state(build, name, type, first_op);
  }
  void update(Op* param, Value* gradient, const AdamW& o) {
    Value* p = param->result();
    Value* m = moment(*param, "exp_avg");
    Value* v = moment(*param, "exp_avg_sq");
    build_update(*param, "adamw", {p, m, v, gradient, step, non_finite}, {p, m, v},
                 {{"beta1", o.beta1}, {"beta2", o.beta2}, {"eps", o.eps}, {"weight_decay", o.weight_decay}});
  }
  void update(Op* param, Value* gradient, const SGD& o) {
    Value* p = param->result();
    Value* m = o.momentum != 0 ? moment(*param, "momentum_buffer") : nullptr;
    build_update(*param, "sgd", {p, m, gradient, non_finite}, m ? std::vector<Value*>{p, m} : std::vector<Value*>{p},
                 {{"momentum", o.momentum}, {"weight_decay", o.weight_decay}});
  }
  // Each of `current` is updated in its own buffer.
  void build_update(const Op& param, const std::string& opcode, std::vector<Value*> operands,
                    const std::vector<Value*>& current, ir::Attrs attrs) {
    std::vector<Graph::NewResult> results;
    std::vector<int64_t> donated;
    for (size_t i = 0; i < current.size(); ++i) {
      results.push_back({current[i]->name() + ".new", current[i]->type()});
      donated.push_back(static_cast<int64_t>(i));
    }
    attrs["donates"] = donated;
    Op* op = build.at_end(Section::Opt, param.module_path).op(opcode, std::move(operands), results, std::move(attrs));
    for (size_t i = 0; i < current.size(); ++i) graph.carries.push_back({current[i], op->result(static_cast<int>(i))});
  }
};

}  // namespace

std::vector<OptimizerState> append_update(Graph& graph, const Optimizer& optimizer, const Strategy& strategy,
                                          const UpdateOptions& options) {
  std::vector<Op*> gradients;
  std::map<std::string, Op*> params;
  for (const auto& op : graph.ops()) {
    if (op->is("gradient")) gradients.push_back(op.get());
    if (op->is("param")) params[op->attr<std::string>("name")] = op.get();
  }
  ir::Builder build(graph);
  const Loss loss = reduce_loss(graph, build, strategy);
  Value* norm = append_norm(build, gradients, strategy, loss.count);
  Value* non_finite = add(build, Section::Clip, "non_finite", {norm}, Type::tensor(DType::f32, {}), "non_finite");
  Value* guard = non_finite;
  if (!options.skip_non_finite)
    guard = add(build, Section::Clip, "full", {}, non_finite->type(), "updates", {{"value", 0.0}});
  Value* coefficient = nullptr;
  if (options.max_norm > 0 || loss.count) {
    std::vector<Value*> inputs = {norm};
    if (loss.count) inputs.push_back(loss.count);
    const bool f64 = std::ranges::any_of(gradients, [](Op* g) { return g->result()->type().dtype == DType::f64; });
    coefficient = add(build, Section::Clip, "clip_coefficient", inputs, Type::tensor(f64 ? DType::f64 : DType::f32, {}),
                      "clip_coefficient", {{"max_norm", options.max_norm}});
  }
  std::vector<OptimizerState> states;
  Op* first_op = graph.ops().front().get();
  UpdateContext context{graph, build, first_op, nullptr, guard, states};
  if (std::holds_alternative<AdamW>(optimizer)) {
    states.push_back({"optimizer.step", ""});
    Value* step = add_state(build, "optimizer.step", Type::tensor(DType::f32, {}), first_op);
    context.step = add(build, Section::Opt, "step_count", {step, guard}, step->type(), "optimizer.step.new");
    graph.carries.push_back({step, context.step});
  }
  for (Op* g : gradients) {
    Value* gradient = g->result();
    if (coefficient)
      gradient =
          add(build, Section::Clip, "scale", {gradient, coefficient}, gradient->type(), gradient->name() + ".clipped");
    Op* param = params.at(g->attr<std::string>("param"));
    std::visit([&](const auto& o) { context.update(param, gradient, o); }, optimizer);
  }
  build.apply();
  graph.outputs = {loss.mean, norm, non_finite};
  return states;
}

void append_loss(Graph& graph, const Strategy& strategy) {
  ir::Builder build(graph);
  graph.outputs = {reduce_loss(graph, build, strategy).mean};
}

}  // namespace step
}  // namespace sfsdp
