// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/analysis/own_start.h"

#include <algorithm>

#include "sfsdp/ir/opset.h"

namespace sfsdp::passes {

bool add_own(const ir::Index& index, const ir::Value* value, std::vector<ir::Op*>& own) {
  ir::Op* op = value->producer();
  if (ir::is_root(*op) || std::ranges::find(own, op) != own.end()) return true;  // a pack may read a shard twice
  if ((!op->is("cast") && !op->is("pack")) || index.readers(value).size() != 1) return false;
  for (const ir::Value* operand : op->operands)
    if (!add_own(index, operand, own)) return false;
  own.push_back(op);
  return true;
}

}  // namespace sfsdp::passes
