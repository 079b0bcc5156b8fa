// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/memory/sum_of_chunks.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sfsdp/ir/type.h"

namespace sfsdp::passes {

void SumOfChunks::add(ir::Value* part) {
  ir::Type type = part->type();
  type.dtype = ir::wide(type.dtype);
  if (sum_)
    sum_ = place_.value("add_into", {sum_, part}, type, "", {{"donates", std::vector<int64_t>{0}}});
  else
    sum_ = type.dtype == part->type().dtype ? part : cast(part, type);
}

void SumOfChunks::replace(ir::Value* product) {
  if (sum_->type().dtype == product->type().dtype) {
    build_.replace(product, sum_);
    return;
  }
  bool others = std::ranges::find(graph_.outputs, product) != graph_.outputs.end();
  for (const auto& op : graph_.ops()) {
    if (std::ranges::find(op->operands, product) == op->operands.end()) continue;
    if (op->is("cast") && op->result()->type() == sum_->type()) {
      build_.replace(op->result(), sum_);
      build_.erase(op.get());
    } else {
      others = true;
    }
  }
  if (others) build_.replace(product, cast(sum_, product->type()));
}

}  // namespace sfsdp::passes
