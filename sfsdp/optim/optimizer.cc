// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/optim/optimizer.h"

#include <map>
#include <string>

#include "sfsdp/ir/builder.h"
#include "sfsdp/optim/clip.h"

namespace sfsdp {

double learning_rate(const Optimizer& optimizer) {
  return std::visit([](const auto& o) { return o.lr; }, optimizer);
}

void check_optimizer(const Optimizer& optimizer) {
  std::visit([](const auto& o) { check(o); }, optimizer);
}

namespace step {

using ir::Graph, ir::Op, ir::Section, ir::Type, ir::Value;

std::vector<OptimizerState> append_update(Graph& graph, const Optimizer& optimizer, const Strategy& strategy,
                                          const UpdateOptions& options) {
  std::vector<Op*> gradients;
  std::map<std::string, Op*> params;
  std::vector<std::string> paths;
  for (const auto& op : graph.ops()) {
    if (op->is("gradient")) gradients.push_back(op.get());
    if (!op->is("param")) continue;
    paths.push_back(op->attr<std::string>("name"));
    params[paths.back()] = op.get();
  }
  std::visit([&](const auto& o) { check_matches(o.groups, paths); }, optimizer);
  ir::Builder build(graph);
  const auto clip = [&] { return build.at_end(Section::Clip); };
  const Loss loss = reduce_loss(graph, build, strategy);
  Value* norm = append_norm(build, gradients, strategy, loss.count);
  Value* non_finite = clip().value("non_finite", {norm}, Type::tensor(ir::DType::f32, {}), "non_finite");
  Value* guard = non_finite;
  if (!options.skip_non_finite) guard = clip().value("full", {}, non_finite->type(), "updates", {{"value", 0.0}});
  Value* coefficient = append_coefficient(build, gradients, norm, loss.count, options.max_norm);
  UpdateBuilder updates(graph, build, coefficient, guard, strategy.options.mixed_precision.state_dtype);
  for (const Op* g : gradients) {
    const Op& param = *params.at(g->attr<std::string>("param"));
    std::visit([&](const auto& o) { build_update(updates, param, g->result(), o); }, optimizer);
  }
  if (options.balance.rate != 0) append_expert_balance(graph, build, strategy, options.balance, guard);
  build.apply();
  graph.outputs = {loss.mean, norm, non_finite};
  return updates.take_states();
}

void append_loss(Graph& graph, const Strategy& strategy) {
  ir::Builder build(graph);
  graph.outputs = {reduce_loss(graph, build, strategy).mean};
}

}  // namespace step
}  // namespace sfsdp
