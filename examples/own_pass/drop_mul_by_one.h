// What:   x * 1 is x.
// Why:    a model whose scales are settings multiplies by 1 where a setting is 1, forward and backward.
// Needs:  nothing.
// Leaves: no aten.mul.Scalar by 1 whose result could as well be its operand.
#pragma once

#include <sfsdp/base/check.h>
#include <sfsdp/ir/opset.h>
#include <sfsdp/passes/analysis/own_memory.h>
#include <sfsdp/passes/registry.h>

inline std::vector<sfsdp::ir::Op*> find_mul_by_one(const sfsdp::ir::Graph& graph, bool backward) {
  const auto own_memory = sfsdp::passes::own_memory(graph);  // buffers that an op takes over, or the next step
  std::vector<sfsdp::ir::Op*> found;
  for (const auto& op : graph.ops()) {
    if (!op->is("aten.mul.Scalar") || (op->section == sfsdp::ir::Section::Bwd && !backward)) continue;
    const sfsdp::ir::Attr& factor = op->attrs.at("other");
    const bool is_one = factor == sfsdp::ir::Attr(1.0) || factor == sfsdp::ir::Attr(int64_t{1});
    const sfsdp::ir::Value *x = op->operands[0], *y = op->result();
    const bool apart = own_memory.contains(sfsdp::ir::storage_of(x)) || own_memory.contains(y);
    if (is_one && x->type() == y->type() && !apart) found.push_back(op.get());  // an integer times 1.0 is a float
  }
  return found;
}

inline bool drop_mul_by_one(sfsdp::ir::Graph& graph, const sfsdp::passes::OptionValues& options,
                            sfsdp::passes::PassContext& ctx) {
  const bool backward = std::get<bool>(options.at("backward"));
  const std::vector<sfsdp::ir::Op*> dropped = find_mul_by_one(graph, backward);
  std::map<sfsdp::ir::Value*, sfsdp::ir::Value*> replaced;
  for (const sfsdp::ir::Op* op : dropped) {
    const auto below = replaced.find(op->operands[0]);  // x * 1 * 1
    replaced.emplace(op->result(), below == replaced.end() ? op->operands[0] : below->second);
    ctx.metrics.add("products_dropped", 1);
  }
  graph.replace_uses(replaced);
  graph.erase(dropped);
  SFSDP_CHECK(find_mul_by_one(graph, backward).empty(), "a product by 1 is left");  // the "Leaves" line, on every run
  return !dropped.empty();
}

inline void register_drop_mul_by_one() {
  sfsdp::passes::register_pass({.name = "drop_mul_by_one",
                                .exactness = sfsdp::passes::Exactness::Exact,
                                .help = "x * 1 is x",
                                .options = {{.name = "backward", .fallback = true, .help = "of gradients too"}},
                                .run = drop_mul_by_one});
}
