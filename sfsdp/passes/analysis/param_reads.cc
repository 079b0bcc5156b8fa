// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/analysis/param_reads.h"

#include <algorithm>
#include <cstddef>

#include "sfsdp/base/strings.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::passes {

bool is_materialisation(const ir::Op& op) {
  if (!op.is("cast") && !op.is("all_gather") && !op.is("narrow")) return false;
  const ir::Op* from = op.operands[0]->producer();
  return from->is("param") || is_materialisation(*from);
}

const ir::Op* param_of(const ir::Value* value) {
  const ir::Op* op = value->producer();
  while (is_materialisation(*op)) op = op->operands[0]->producer();
  return op->is("param") ? op : nullptr;
}

const ir::Op* param_of_gradient(const ir::Graph& graph, const ir::Index& index, const ir::Value* value) {
  while (index.readers(value).size() == 1) {
    const ir::Op* reader = index.readers(value)[0];
    if (reader->is("gradient")) return graph.find_param(reader->attr<std::string>("param"));
    const bool keeps = reader->is("cast") || reader->is("accumulate") || reader->is("mul_scalar") ||
                       reader->is("view") || ir::is_wait(*reader);
    if (!keeps && !ir::is_collective(*reader)) break;
    value = reader->result();
  }
  return nullptr;
}

std::string block_of(const std::string& name) {
  const auto path = split(name, '.');
  for (size_t i = 0; i < path.size(); ++i)
    if (!path[i].empty() && std::ranges::all_of(path[i], [](char c) { return c >= '0' && c <= '9'; }))
      return join({path.begin(), path.begin() + static_cast<std::ptrdiff_t>(i) + 1}, ".");
  return "";
}

}  // namespace sfsdp::passes
