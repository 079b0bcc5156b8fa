// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/analysis/param_reads.h"

#include "sfsdp/ir/opset.h"

namespace sfsdp::passes {

bool is_materialisation(const ir::Op& op) {
  if (!op.is("cast", "all_gather", "narrow")) return false;
  const ir::Op* from = op.operands[0]->producer();
  return from->is("param") || is_materialisation(*from);
}

const ir::Op* param_of(const ir::Value* value) {
  const ir::Op* op = value->producer();
  while (is_materialisation(*op)) op = op->operands[0]->producer();
  return op->is("param") ? op : nullptr;
}

ParamNames params_by_name(const ir::Graph& graph) {
  ParamNames params;
  for (const auto& op : graph.ops())
    if (op->is("param")) params.emplace(op->attr<std::string>("name"), op.get());
  return params;
}

const ir::Op* param_of_gradient(const ParamNames& params, const ir::Index& index, const ir::Value* value) {
  while (index.readers(value).size() == 1) {
    const ir::Op* reader = index.readers(value)[0];
    if (reader->is("gradient")) {
      const auto found = params.find(reader->attr<std::string>("param"));
      return found == params.end() ? nullptr : found->second;
    }
    if (!reader->is("cast", "accumulate", "mul_scalar", "view", "wait") && !ir::is_collective(*reader)) break;
    value = reader->result();
  }
  return nullptr;
}

}  // namespace sfsdp::passes
