// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/analysis/param_reads.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

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

namespace {

// The one reader of a value; of a packed buffer the view of what lies at `offset`. nullptr: none or several.
const ir::Op* reader_of(const ir::Index& index, const ir::Value* value, std::optional<int64_t> offset) {
  const auto readers = index.readers(value);
  const auto is_part = [&](const ir::Op* op) { return op->is("view") && op->attr_or<int64_t>("offset", -1) == offset; };
  if (offset && std::ranges::count_if(readers, is_part) == 1) return *std::ranges::find_if(readers, is_part);
  return readers.size() == 1 ? readers[0] : nullptr;
}

}  // namespace

const ir::Op* param_of_gradient(const ParamNames& params, const ir::Index& index, const ir::Value* value) {
  std::optional<int64_t> offset;  // within the buffer that it was packed in
  while (const ir::Op* reader = reader_of(index, value, offset)) {
    if (reader->is("gradient")) {
      const auto found = params.find(reader->attr<std::string>("param"));
      return found == params.end() ? nullptr : found->second;
    }
    if (reader->is("pack") && !offset) {
      const auto place = std::ranges::find(reader->operands, value) - reader->operands.begin();
      offset = reader->attr<std::vector<int64_t>>("offsets")[static_cast<size_t>(place)];
    } else if (!reader->is("cast", "accumulate", "mul_scalar", "view", "wait") && !ir::is_collective(*reader)) {
      break;
    }
    value = reader->result();
  }
  return nullptr;
}

}  // namespace sfsdp::passes
