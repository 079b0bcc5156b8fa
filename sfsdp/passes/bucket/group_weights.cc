// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/bucket/group_weights.h"

#include <map>
#include <string>
#include <vector>

#include "sfsdp/passes/analysis/param_reads.h"
#include "sfsdp/passes/analysis/same_input.h"

namespace sfsdp::passes {
namespace {

using ir::Op;

std::string text_of(const Op& param, const char* key) { return param.attr_or<std::string>(key, ""); }

// In how many products of forward each parameter is a weight.
std::map<const Op*, int> products_of_params(const ir::Graph& graph) {
  std::map<const Op*, int> products;
  for (const auto& op : graph.ops())
    if (op->is("linear") && op->section != ir::Section::Bwd)
      if (const Op* param = param_of(op->operands[1])) ++products[param];
  return products;
}

// Why a layer cannot be in the group that `first` began; "": it can.
const char* refusal(const Op& layer, const Op* param, const std::map<const Op*, int>& products, const Op* first,
                    const Op* first_param) {
  if (layer.operands.size() > 2) return "left_bias";
  if (!param || products.at(param) > 1) return "left_shared";
  if (!first) return "";
  const ir::Type &weight = layer.operands[1]->type(), &other = first->operands[1]->type();
  if (weight.dtype != other.dtype || weight.dims[1].size != other.dims[1].size ||
      param->result()->type().dtype != first_param->result()->type().dtype)
    return "left_width";
  return text_of(*param, "unit") == text_of(*first_param, "unit") ? "" : "left_apart";
}

}  // namespace

bool group_weights(ir::Graph& graph, PassContext& ctx) {
  const auto products = products_of_params(graph);
  std::map<const Op*, Op*> writable;
  for (const auto& op : graph.ops())
    if (op->is("param")) writable[op.get()] = op.get();
  bool changed = false;
  for (const std::vector<Op*>& layers : ops_of_one_input(graph, "linear", 0)) {
    if (layers[0]->section == ir::Section::Bwd) continue;
    const Op* first = nullptr;
    std::vector<const Op*> group;
    for (const Op* layer : layers) {
      const Op* param = param_of(layer->operands[1]);
      const std::string why = refusal(*layer, param, products, first, group.empty() ? nullptr : group[0]);
      if (!why.empty()) {
        ctx.metrics.add(why, 1);
        continue;
      }
      if (!first) first = layer;
      group.push_back(param);
    }
    if (group.size() < 2) continue;
    ctx.metrics.add("groups", 1);
    const ir::Attr name = group[0]->attr<std::string>("name");
    for (const Op* param : group) {
      changed |= !param->has_attr("group") || !(param->attrs.at("group") == name);
      writable.at(param)->attrs["group"] = name;
    }
  }
  return changed;
}

}  // namespace sfsdp::passes
