// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/fuse/fuse.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include "sfsdp/ir/moves.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/passes/fuse/grouping.h"

namespace sfsdp::passes {
namespace {

using ir::Graph, ir::Op;

const Words<FuseScope> kScopes = {{"none", FuseScope::None}, {"module", FuseScope::Module}, {"all", FuseScope::All}};

// Numbers the kernels by where they run, and puts their ops together. Returns whether anything changed.
bool write(Graph& graph, const Grouping& grouping) {
  const auto position = [&](const Op* op) { return static_cast<int64_t>(grouping.index().position(op)); };
  std::unordered_map<const Op*, int64_t> key;
  for (const auto& op : graph.ops()) key[op.get()] = position(op.get());
  std::vector<const Kernel*> order;
  for (const Kernel& kernel : grouping.kernels()) {
    for (const Op* op : kernel.ops) key[op] = position(kernel.ops.back());
    order.push_back(&kernel);
  }
  for (const auto& op : graph.ops())  // views of what a kernel makes come after it
    if (ir::aliased_operand(*op) >= 0) key[op.get()] = std::max(key[op.get()], key[op->operands[0]->producer()]);
  std::ranges::sort(order, {}, [&](const Kernel* k) { return key.at(k->ops.back()); });
  bool changed = ir::order_by(graph, [&](const Op& op) { return key.at(&op); });
  for (size_t k = 0; k < order.size(); ++k)
    for (Op* op : order[k]->ops) {
      const ir::Attr number = static_cast<int64_t>(k);
      const auto had = op->attrs.find("kernel");
      changed |= had == op->attrs.end() || !(had->second == number);
      op->attrs["kernel"] = number;
    }
  return changed;
}

}  // namespace

const std::vector<Field<FuseOptions>>& FuseOptions::fields() {
  static const std::vector<Field<FuseOptions>> kFields = {
      field("scope", &FuseOptions::scope, kScopes, "none, module or all")};
  return kFields;
}

bool fuse(Graph& graph, const FuseOptions& options, PassContext& ctx) {
  bool changed = ir::order_by_part(graph);
  for (const auto& op : graph.ops()) changed |= op->attrs.erase("inside") > 0;  // of other kernels
  const Grouping grouping(graph, options.scope);
  for (const Kernel& kernel : grouping.kernels()) {
    ctx.metrics.add("kernels", 1);
    ctx.metrics.add("ops_joined", std::ssize(kernel.ops) - 1);
  }
  return write(graph, grouping) || changed;
}

}  // namespace sfsdp::passes
