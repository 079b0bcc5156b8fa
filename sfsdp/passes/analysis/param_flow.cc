// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/analysis/param_flow.h"

#include <algorithm>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/mesh/model_axis.h"

namespace sfsdp::passes {

using ir::Graph, ir::Op, ir::Value;

bool moves_over_tensor_axis(const Op& op) {
  const auto axes = ir::axes_of(op);
  return op.is("all_gather", "reduce_scatter") && axes && std::ranges::any_of(*axes, is_tensor_axis);
}

namespace {

bool materialises(const Op& op) { return op.is("all_gather", "cast") && !moves_over_tensor_axis(op); }

bool is_on_gradient_path(const Op& op) {
  if (moves_over_tensor_axis(op)) return false;
  if (op.is("mul_scalar")) return op.section == ir::Section::Clip;  // the rest of a mean
  return op.is("cast", "pad", "reduce_scatter", "accumulate", "all_reduce");
}

constexpr const char* kRegular =
    "expected a step as data parallelism and the optimizer leave it, each parameter with one gradient and one update";

[[noreturn]] void refuse(std::string_view pass, const std::string& problem) {
  throw UserError(concat("pass ", pass, ": ", problem, "\n  ", kRegular));
}

}  // namespace

const Value* ParamReader::carried_on(const Value* current) const {
  const auto found = next_of_.find(current);
  return found == next_of_.end() ? nullptr : found->second;
}

void ParamReader::require_regular(const ParamFlow& flow, std::string_view pass) const {
  const auto require = [&](bool holds, std::string_view problem) {
    if (!holds) refuse(pass, concat("parameter ", flow.name, ' ', problem));
  };
  for (const ParamUse& use : flow.uses) {
    require(ir::is_repeated(use.section), concat("is read in section ", to_string(use.section)));
    for (const Op* op : use.chain)
      require(!op->is("all_gather") || flow.param->has_attr("rows"), "is gathered, but has no rows=");
    for (const Op* op : use.chain)
      require(!op->is("all_gather") || ir::axes_of(*op) == flow.split,
              concat("is gathered over other axes than it is cut over: ", join(flow.split, ",")));
    require(use.value->type().shape() == flow.whole.shape(),
            concat("is read in two shapes, ", use.value->type(), " and ", flow.whole));
    require(!use.readers.empty(), "is gathered or cast for nobody; run dead_code first");
    require(std::ranges::none_of(use.readers, [](const Op* reader) { return ir::is_start(*reader); }),
            "is gathered apart from its wait; run the pass before split_collectives");
  }
  const Value* next = carried_on(flow.param->result());
  require(!next || (flow.update && next == flow.update->result()), "is carried on by another op than its update");
  if (!flow.update) return;
  const Op& update = *flow.update;
  require(next != nullptr, "is updated, but not carried on");
  require(flow.path.has_value(), "is updated, but has no op gradient");
  const GradientPath& path = *flow.path;
  require(ir::is_repeated(path.raw->producer()->section) &&
              (flow.uses.empty() || path.raw->type().numel() == flow.whole.numel()),
          "has a gradient that backward does not leave whole; run the pass before split_collectives");
  bool packed = true;  // so far: casts and pads alone, which a bucket's pack stands for
  for (const Op* op : path.ops) {
    packed &= op->is("cast", "pad") && ir::is_repeated(op->section);
    require(packed || !op->is("pad"), "has a gradient that is padded after it is reduced or added up");
  }
  const size_t gradient_at = ir::gradient_operand(update);
  const Value* gradient = update.operands[gradient_at];
  require(gradient == (path.scale ? path.scale : path.gradient)->result(), "is updated by what is not its gradient");
  size_t moments = 0;
  for (size_t i = 1; i < gradient_at; ++i) moments += update.operands[i] != nullptr;
  require(flow.moments.size() == moments, "has a moment that is no state");
  for (size_t k = 0; k < moments; ++k)
    require(carried_on(flow.moments[k]->result()) == update.result(static_cast<int>(k) + 1) &&
                flow.moments[k]->attr<std::string>("name").starts_with(flow.name),
            "has a moment that its update does not carry on, or of another's name");
}

ParamReader::ParamReader(const Graph& graph) : index_(graph) {
  for (const auto& op : graph.ops())
    if (op->is("gradient")) gradients_.emplace(op->attr<std::string>("param"), op.get());
  for (const ir::Carry& carry : graph.carries) next_of_.emplace(carry.current, carry.next);
}

ParamFlow ParamReader::read(Op* param) const {
  ParamFlow flow;
  flow.param = param;
  flow.name = param->attr<std::string>("name");
  flow.whole = param->result()->type();
  if (!flow.whole.dims.empty()) {
    std::vector<std::string> model;  // axes that cut the whole as readers see it
    for (const std::string& axis : flow.whole.dims[0].split)
      (is_tensor_axis(axis) || axis == param->attr_or<std::string>("box", "") ? model : flow.split).push_back(axis);
    if (param->has_attr("rows")) flow.whole.dims[0] = ir::Dim{param->attr<int64_t>("rows"), std::move(model), false};
  }
  for (Op* reader : index_.readers(param->result())) {
    if (ir::is_update(*reader)) {
      flow.update = reader;
    } else if (materialises(*reader)) {
      flow.uses.push_back(follow(reader));
    } else {
      add_plain_use(flow, reader);
    }
  }
  for (const ParamUse& use : flow.uses) flow.whole = use.value->type();
  if (const auto found = gradients_.find(flow.name); found != gradients_.end()) flow.path = path_to(found->second);
  if (flow.update)
    for (size_t i = 1; i < ir::gradient_operand(*flow.update); ++i)
      if (Value* v = flow.update->operands[i]; v && v->producer()->is("state")) flow.moments.push_back(v->producer());
  return flow;
}

// From the first op of a materialisation to the value that is read.
ParamUse ParamReader::follow(Op* op) const {
  ParamUse use;
  use.section = op->section;
  while (true) {
    use.chain.push_back(op);
    use.value = op->result();
    const auto next = index_.readers(use.value);
    if (next.size() != 1) break;
    const bool more = (op->is("cast") && next[0]->is("all_gather") && materialises(*next[0])) ||
                      (op->is("all_gather") && next[0]->is("narrow"));
    if (!more || next[0]->section != op->section) break;
    op = next[0];
  }
  const auto readers = index_.readers(use.value);
  use.readers.assign(readers.begin(), readers.end());
  return use;
}

void ParamReader::add_plain_use(ParamFlow& flow, Op* reader) const {
  for (ParamUse& use : flow.uses)
    if (use.chain.empty() && use.section == reader->section) {
      use.readers.push_back(reader);
      return;
    }
  ParamUse use;
  use.section = reader->section;
  use.value = flow.param->result();
  use.readers = {reader};
  flow.uses.push_back(use);
}

// True where readers lead to gradients alone: several parameters have one gradient where their paths were merged.
bool ParamReader::becomes_gradients_only(const Value* value) const {
  return std::ranges::all_of(index_.readers(value), [&](const Op* op) {
    return op->is("gradient") || (is_on_gradient_path(*op) && becomes_gradients_only(op->result()));
  });
}

GradientPath ParamReader::path_to(Op* gradient) const {
  GradientPath path;
  path.gradient = gradient;
  path.raw = gradient->operands[0];
  for (Op* op = path.raw->producer(); is_on_gradient_path(*op) && becomes_gradients_only(op->result());
       op = path.raw->producer()) {
    path.ops.insert(path.ops.begin(), op);
    path.raw = op->operands[0];
  }
  for (Op* reader : index_.readers(gradient->result()))
    if (reader->is("scale")) path.scale = reader;
  return path;
}

}  // namespace sfsdp::passes
