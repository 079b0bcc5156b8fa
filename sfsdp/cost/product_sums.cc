// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/cost/product_sums.h"

#include "sfsdp/cost/op_shape.h"
#include "sfsdp/ir/index.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::cost {
namespace {

using ir::Op, ir::Value;

// The product that makes a value, through casts and views of which each is the only reader; nullptr: there is none.
const Op* product_behind(const Value* value, const ir::Index& index) {
  while (index.readers(value).size() == 1) {
    const Op* op = value->producer();
    if (class_of(*op) == Class::Product) return op;
    if (!op->is("cast") && ir::aliased_operand(*op) != 0) return nullptr;
    value = op->operands[0];
  }
  return nullptr;
}

}  // namespace

ProductSums product_sums(const ir::Graph& graph) {
  const ir::Index index(graph);
  ProductSums sums;
  for (const auto& op : graph.ops()) {
    if (!op->is("accumulate")) continue;
    const Op* made = op->operands[0]->producer();
    const bool packs = made->is("pack") && index.readers(made->result()).size() == 1;
    const std::vector<Value*> parts = packs ? made->operands : std::vector<Value*>{op->operands[0]};
    for (const Value* part : parts)
      if (const Op* product = product_behind(part, index)) sums.emplace(product, op.get());
  }
  return sums;
}

}  // namespace sfsdp::cost
