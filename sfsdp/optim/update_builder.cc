// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/optim/update_builder.h"

#include <utility>

namespace sfsdp::step {

using ir::Section, ir::Value;

UpdateBuilder::UpdateBuilder(ir::Graph& graph, ir::Builder& build, Value* coefficient, Value* guard,
                             std::optional<ir::DType> moments)
    : graph_(graph),
      build_(build),
      first_op_(graph.ops().front().get()),
      coefficient_(coefficient),
      guard_(guard),
      moments_(moments) {}

// At the head of the graph.
Value* UpdateBuilder::state(const std::string& name, ir::Type type) {
  return build_.before(first_op_).in(Section::Init).at("").value("state", {}, std::move(type), name, {{"name", name}});
}

Value* UpdateBuilder::step() {
  if (step_) return step_;
  const std::string name = "optimizer.step";
  states_.push_back({name, ""});
  Value* before = state(name, ir::Type::tensor(ir::DType::f32, {}));
  step_ = build_.at_end(Section::Opt).value("step_count", {before, guard_}, before->type(), name + ".new");
  graph_.carries.push_back({before, step_});
  return step_;
}

Value* UpdateBuilder::moment(const ir::Op& param, const std::string& kind) {
  const auto& of = param.attr<std::string>("name");
  const std::string name = of + "." + kind;
  states_.push_back({name, of});
  ir::Type type = param.result()->type();
  type.dtype = moments_.value_or(type.dtype);
  return state(name, std::move(type));
}

void UpdateBuilder::update(const std::string& opcode, const ir::Op& param, const std::vector<Value*>& moments,
                           Value* gradient, const std::vector<Value*>& others, ir::Attrs attrs,
                           const ParamNumbers& numbers) {
  if (coefficient_) {
    ir::Type type = gradient->type();
    type.strides.clear();  // as the kernel writes it
    gradient = build_.at_end(Section::Clip)
                   .value("scale", {gradient, coefficient_}, std::move(type), gradient->name() + ".clipped");
  }
  std::vector<Value*> operands = {param.result()}, current;
  operands.insert(operands.end(), moments.begin(), moments.end());
  for (Value* value : operands)
    if (value) current.push_back(value);
  operands.push_back(gradient);
  operands.insert(operands.end(), others.begin(), others.end());
  std::vector<ir::Graph::NewResult> results;
  std::vector<int64_t> donated;
  for (size_t i = 0; i < current.size(); ++i) {
    results.push_back({current[i]->name() + ".new", current[i]->type()});
    donated.push_back(static_cast<int64_t>(i));
  }
  attrs["donates"] = donated;
  attrs["weight_decay"] = numbers.weight_decay;
  if (numbers.lr_factor != 1) attrs["lr_factor"] = numbers.lr_factor;
  ir::Op* op = build_.at_end(Section::Opt, param.module_path).op(opcode, operands, results, std::move(attrs));
  for (size_t i = 0; i < current.size(); ++i) graph_.carries.push_back({current[i], op->result(static_cast<int>(i))});
}

}  // namespace sfsdp::step
