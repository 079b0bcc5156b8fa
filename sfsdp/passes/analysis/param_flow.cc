// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/analysis/param_flow.h"

#include <algorithm>

namespace sfsdp::passes {
namespace {

using ir::Graph, ir::Op, ir::Value;

bool is_update(const Op& op) { return op.is("adamw") || op.is("sgd"); }
bool is_moment(const Op& update, size_t operand) { return update.is("adamw") || operand == 1; }

bool is_on_gradient_path(const Op& op) {
  for (const char* name : {"cast", "pad", "reduce_scatter", "accumulate", "all_reduce"})
    if (op.is(name)) return true;
  return op.is("mul_scalar") && op.section == ir::Section::Clip;  // the rest of a mean
}

}  // namespace

ParamReader::ParamReader(const Graph& graph) : uses_(graph.uses()) {
  for (const auto& op : graph.ops()) {
    position_.emplace(op.get(), position_.size());
    if (op->is("gradient")) gradients_.emplace(op->attr<std::string>("param"), op.get());
  }
}

ParamFlow ParamReader::read(Op* param) const {
  ParamFlow flow;
  flow.param = param;
  flow.name = param->attr<std::string>("name");
  flow.whole = param->result()->type();
  if (param->has_attr("rows")) flow.whole.dims[0] = ir::Dim{param->attr<int64_t>("rows"), {}, false};
  for (Op* reader : readers(param->result())) {
    if (is_update(*reader)) {
      flow.update = reader;
    } else if (reader->is("all_gather") || reader->is("cast")) {
      flow.uses.push_back(follow(reader));
    } else {
      add_plain_use(flow, reader);
    }
  }
  for (const ParamUse& use : flow.uses) flow.whole = use.value->type();
  if (const auto found = gradients_.find(flow.name); found != gradients_.end()) flow.path = path_to(found->second);
  if (flow.update)
    for (const size_t i : {1, 2})
      if (Value* v = flow.update->operands[i]; v && v->producer()->is("state") && is_moment(*flow.update, i))
        flow.moments.push_back(v->producer());
  return flow;
}

const std::vector<Op*>& ParamReader::readers(const Value* value) const {
  static const std::vector<Op*> none;
  const auto found = uses_.find(value);
  return found == uses_.end() ? none : found->second;
}

// From the first op of a materialisation to the value that is read.
ParamUse ParamReader::follow(Op* op) const {
  ParamUse use;
  use.section = op->section;
  while (true) {
    use.chain.push_back(op);
    use.value = op->result();
    const auto& next = readers(use.value);
    if (next.size() != 1) break;
    const bool more = (op->is("cast") && next[0]->is("all_gather")) || (op->is("all_gather") && next[0]->is("narrow"));
    if (!more) break;
    op = next[0];
  }
  use.readers = readers(use.value);
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

// Of one parameter, or of several that have one and the same gradient: duplicates of their paths were merged.
bool ParamReader::becomes_gradients_only(const Value* value) const {
  return std::ranges::all_of(readers(value), [&](const Op* op) {
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
  for (Op* reader : readers(gradient->result()))
    if (reader->is("scale")) path.scale = reader;
  return path;
}

}  // namespace sfsdp::passes
