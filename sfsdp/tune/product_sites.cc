// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tune/product_sites.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <tuple>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/printer.h"
#include "sfsdp/passes/overlap/pipeline_products.h"
#include "sfsdp/passes/pass_manager.h"
#include "sfsdp/sim/simulate.h"

namespace sfsdp::tune {
namespace {

using ir::Graph, ir::Op, ir::Value;
using passes::ProductSite;

// The collective, its products and what adds them up, as a graph by itself. What they read is given; what others read is returned.
class Excerpt {
 public:
  Excerpt(const Graph& graph, const ProductSite& site) {
    graph_.mesh = graph.mesh;
    graph_.view = Graph::View::Local;
    std::vector<const Op*> ops(site.products.begin(), site.products.end());
    ops.insert(ops.end(), site.sums.begin(), site.sums.end());
    ops.insert(site.is_gather() ? ops.begin() : ops.end(), site.moves.begin(), site.moves.end());
    for (const Op* op : ops)
      for (const Value* operand : op->operands)
        if (operand && std::ranges::find(ops, operand->producer()) == ops.end()) give(operand);
    for (const Op* op : ops) add(*op);
    if (!site.is_gather() || site.has_others) graph_.outputs.push_back(made_.at(site.to));
    if (site.is_gather())
      for (const Op* product : site.products) graph_.outputs.push_back(made_.at(product->result()));
  }
  const Graph& graph() const { return graph_; }

 private:
  void give(const Value* value) {
    if (made_.contains(value)) return;
    const std::string name = "x" + std::to_string(made_.size());
    Op* op = graph_.add("input", {}, {{name, value->type()}});
    op->attrs["name"] = name;
    made_[value] = op->result();
  }
  void add(const Op& like) {
    std::vector<Value*> operands;
    for (const Value* operand : like.operands) operands.push_back(operand ? made_.at(operand) : nullptr);
    Op* op = graph_.add(like.opcode, operands, {{"y" + std::to_string(made_.size()), like.result()->type()}});
    op->operand_lists = like.operand_lists;
    op->attrs = like.attrs;
    made_[like.result()] = op->result();
  }

  Graph graph_;
  std::map<const Value*, Value*> made_;
};

double seconds_of(const Graph& excerpt, const cost::Machine& machine, bool in_steps, std::string_view axis) {
  Graph graph = excerpt.clone();
  std::vector<passes::PassCall> calls;
  if (in_steps)
    calls.push_back(passes::make_call("pipeline_products", passes::PipelineProductsOptions{.axis = std::string(axis)}));
  for (const char* name : {"split_collectives", "cover_permutes", "fuse"}) calls.push_back(passes::make_call(name));
  passes::run_passes(graph, calls, {.checks = passes::Checks::RegisteredPasses});
  return sim::simulate(graph, machine).step_seconds;
}

std::string ms(double seconds) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.3f ms", seconds * 1e3);
  return text.data();
}

}  // namespace

std::vector<ProductSiteChoice> choose_product_sites(const Graph& graph, std::string_view axis,
                                                    const std::optional<cost::Machine>& machine) {
  std::map<std::string, std::pair<double, double>> known;  // by text: layers are alike
  std::vector<ProductSiteChoice> choices;
  for (const ProductSite& site : passes::find_product_sites(graph, axis)) {
    const Op& op = *site.collective;
    ProductSiteChoice choice = {.name = site.to->name(),
                                .opcode = op.opcode.str(),
                                .path = site.products[0]->module_path,
                                .section = op.section,
                                .bytes = (site.is_gather() ? site.to : site.from)->type().bytes(),
                                .products = std::ssize(site.products),
                                .refused = site.refused};
    choice.taken = site.refused.empty();
    if (choice.taken && machine) {
      const Excerpt excerpt(graph, site);
      const auto [found, is_new] = known.try_emplace(ir::print(excerpt.graph()));
      if (is_new)
        found->second = {seconds_of(excerpt.graph(), *machine, false, axis),
                         seconds_of(excerpt.graph(), *machine, true, axis)};
      std::tie(choice.seconds, choice.in_steps) = found->second;
      choice.taken = choice.in_steps < choice.seconds;
    }
    choices.push_back(std::move(choice));
  }
  return choices;
}

std::string taken_names(const std::vector<ProductSiteChoice>& sites) {
  std::vector<std::string> names;
  for (const ProductSiteChoice& site : sites)
    if (site.taken) names.push_back(site.name);
  return join(names, ",");
}

std::string why_none_taken(const std::vector<ProductSiteChoice>& sites) {
  if (sites.empty())
    return "no product stands beside a gather or a reduction of rows, as the ranks divide neither samples nor "
           "positions, or no "
           "rule cuts products";
  const ProductSiteChoice* nearest = nullptr;
  for (const ProductSiteChoice& site : sites)
    if (site.refused.empty() && (!nearest || site.in_steps - site.seconds < nearest->in_steps - nearest->seconds))
      nearest = &site;
  if (!nearest)
    return concat("of ", sites.size(), " sites none can be taken; at ", sites[0].path, ": ", sites[0].refused);
  return concat("of ", sites.size(), " sites none is faster part by part; at ", nearest->path, " it takes ",
                ms(nearest->in_steps), ", and ", ms(nearest->seconds), " as it stands");
}

}  // namespace sfsdp::tune
