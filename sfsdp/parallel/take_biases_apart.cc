// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/take_biases_apart.h"

#include <unordered_map>
#include <vector>

#include "sfsdp/ir/builder.h"

namespace sfsdp::parallel {
namespace {

using ir::Graph, ir::Op, ir::Value;

// Whether the op is a product with a bias that is added up over the axis, by the cut of its weight: [n, k], or [k, n] of a matmul.
bool adds_up_with_bias(const Op& op, const std::map<std::string, int64_t>& cuts) {
  if (!op.is("linear", "matmul") || op.operands.size() != 3 || !op.operands[1]->producer()->is("param")) return false;
  if (op.operands[1]->type().dims.size() != 2) return false;
  const auto cut = cuts.find(op.operands[1]->producer()->attr<std::string>("name"));
  return cut != cuts.end() && cut->second == (op.is("linear") ? 1 : 0);
}

}  // namespace

void take_biases_apart(Graph& graph, const std::map<std::string, int64_t>& cuts) {
  std::vector<Op*> biased;
  for (const auto& op : graph.ops())
    if (adds_up_with_bias(*op, cuts)) biased.push_back(op.get());
  ir::Builder build(graph);
  std::unordered_map<const Op*, const Op*> product_of;
  for (Op* op : biased) {
    const auto place = build.before(op);
    Value* old = op->result();
    Value* product = place.value(op->opcode, {op->operands[0], op->operands[1]}, old->type(), old->name() + ".product");
    build.take_place(old, place.value("aten.add.Tensor", {product, op->operands[2]}, old->type(), "biased"));
    product_of[op] = product->producer();
  }
  for (const auto& op : graph.ops())
    if (const auto found = product_of.find(op->bwd_of); found != product_of.end()) op->bwd_of = found->second;
  build.erase(biased);
  build.apply();
}

}  // namespace sfsdp::parallel
