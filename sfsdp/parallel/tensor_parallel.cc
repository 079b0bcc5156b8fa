// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/tensor_parallel.h"

#include <algorithm>
#include <set>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/glob.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/access_map.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/parallel/nearest_degree.h"

namespace sfsdp {

TensorParallel tensor_parallel(std::vector<TensorParallelRule> rules, TensorParallelOptions options) {
  for (const TensorParallelRule& rule : rules) {
    if (rule.pattern.empty())
      throw UserError("tensor_parallel: a rule without a pattern\n  expected a path such as *.w1");
    if (rule.cut.dim < 0 || rule.cut.blocks < 1)
      throw UserError(concat("tensor_parallel: ", rule.pattern, " has ", to_string(rule.cut),
                             "\n  expected a dimension, counted from 0, and 1 or more blocks"));
  }
  for (const Constraint& constraint : options.constraints)
    if (constraint.pattern.empty() || (constraint.cut && (constraint.cut->dim < 0 || constraint.cut->blocks != 1)))
      throw UserError(concat("tensor_parallel: ", to_string(constraint),
                             "\n  expected the path of a module, and a dimension, counted from 0, without blocks, or "
                             "Replicate()"));
  return {std::move(rules), std::move(options)};
}

std::string to_string(const Shard& cut) {
  return concat("Shard(", cut.dim, cut.blocks == 1 ? "" : concat(", {.blocks = ", cut.blocks, "}"), ")");
}

Constraint constrain(std::string pattern, Shard cut) { return {std::move(pattern), cut}; }
Constraint constrain(std::string pattern, Replicate) { return {std::move(pattern)}; }
std::string to_string(const Constraint& constraint) {
  return concat("constrain(\"", constraint.pattern, "\", ", constraint.cut ? to_string(*constraint.cut) : "Replicate()",
                ")");
}

namespace parallel {
namespace {

// "a.x", "a.y" of "a.x|y".
std::vector<std::string> alternatives(std::string_view pattern) {
  std::vector<std::string> all = split(pattern, '|');
  const size_t dot = all[0].rfind('.');
  for (size_t i = 1; i < all.size(); ++i)
    if (dot != std::string::npos && all[i].find('.') == std::string::npos) all[i].insert(0, all[0], 0, dot + 1);
  return all;
}

bool names_one(std::string_view pattern, std::string_view path) {
  if (matches(pattern, path)) return true;
  return pattern.starts_with("*.") && matches(pattern.substr(2), path);
}

std::string_view module_of(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

std::string text_of(const TensorParallelRule& rule) {
  return concat("tensor_parallel: {\"", rule.pattern, "\", ", to_string(rule.cut), "}");
}

[[noreturn]] void refuse_rule(const TensorParallelRule& rule, const std::vector<std::string>& paths, bool is_named) {
  const std::string what = text_of(rule);
  if (is_named)
    throw UserError(concat(what, ": no parameter that it names has a dimension ", rule.cut.dim,
                           "\n  expected Shard(0) for the rows of a weight, Shard(1) for its columns"));
  std::vector<std::string> modules;
  for (const std::string& path : paths) modules.emplace_back(with_stars(std::string(module_of(path))));
  throw UserError(concat(what, " names no parameter\n  expected a path such as ", paths.empty() ? "*.w1" : paths[0],
                         ", or that of its module", did_you_mean(rule.pattern, modules)));
}

// A parameter that a rule cuts.
struct Named {
  const TensorParallelRule* rule;
  std::string path;
  int64_t size;  // of the dimension
  bool is_vocabulary;

  std::string text(const char* verb) const {
    return concat(text_of(*rule), verb, "dimension ", rule->cut.dim, " of ", path, ", of size ", size);
  }
  bool is_cut_by(int64_t ranks) const {
    return size / rule->cut.blocks % ranks == 0 || (is_vocabulary && rule->cut.blocks == 1);
  }
};

void check_divides(const std::vector<Named>& all, const std::vector<MeshAxis>& mesh, int64_t ranks) {
  for (const Named& named : all)
    if (named.size % named.rule->cut.blocks != 0)
      throw UserError(
          concat(named.text(" takes for blocks of one size "),
                 "\n  expected as many blocks as are put side by side there, such as 3 of q, k and v; those of "
                 "several sizes have no rule yet"));
  const auto cuts_all = [&](int64_t degree) {
    return std::ranges::all_of(all, [&](const Named& named) { return named.is_cut_by(degree); });
  };
  for (const Named& named : all) {
    if (named.is_cut_by(ranks)) continue;
    const int64_t blocks = named.rule->cut.blocks;
    throw UserError(concat(named.text(" cuts "), blocks == 1 ? "" : concat(" in ", blocks, " blocks"),
                           ", over tp = ", ranks, "\n  expected a divisor of ", blocks == 1 ? "it" : "a block",
                           ", and of the ranks: the nearest below is tp = ", nearest_degree(mesh, ranks, cuts_all)));
  }
}

// The parameter that the value is, in another dtype or under another view; nullptr: none.
const ir::Op* param_of(const ir::Value* value) {
  const ir::Op* op = value->producer();
  while (op->is("cast", "aten._to_copy", "aten.view", "aten.t", "aten.alias") && !op->operands.empty())
    op = op->operands[0]->producer();
  return op->is("param") ? op : nullptr;
}

// What a value of logits is made of, through views, ops that are linear in elements, and caps: the products that give them, and those of
// adapters that are added to them.
std::vector<const ir::Op*> products_of_logits(const ir::Value* logits) {
  std::vector<const ir::Op*> products;
  std::vector<const ir::Value*> left = {logits};
  std::set<const ir::Value*> seen;
  while (!left.empty()) {
    const ir::Value* value = left.back();
    left.pop_back();
    const ir::Op* op = value->producer();
    if (!seen.insert(value).second) continue;
    if (op->is("linear") && value->type().dims.back().size == logits->type().dims.back().size) products.push_back(op);
    const auto* map = ir::map_of(op->opcode.row());
    const bool by_element = map && map->elementwise && (!map->linear.empty() || op->is("aten.mul.Scalar", "aten.tanh"));
    if (!by_element && !ir::has_flag(*op, ir::kReshape) && !op->is("cast", "aten._to_copy")) continue;
    for (const ir::Value* operand : op->operands)
      if (operand && operand->type().numel() == value->type().numel()) left.push_back(operand);
  }
  return products;
}

// The parameters whose rows stand for ids or classes: tables that are looked up, weights and biases of products that make logits. Those of
// one loss are a set: they have the same classes.
std::vector<std::set<std::string>> find_vocabularies(const ir::Graph& graph) {
  std::vector<std::set<std::string>> all;
  const auto add = [](const ir::Value* value, std::set<std::string>& names) {
    if (const ir::Op* param = param_of(value)) names.insert(param->attr<std::string>("name"));
  };
  for (const auto& op : graph.ops()) {
    const bool looks_up = op->is("embedding", "aten.embedding");
    if (!looks_up && !op->is("cross_entropy")) continue;
    std::set<std::string>& names = all.emplace_back();
    if (looks_up) {
      add(op->operands[0], names);
      continue;
    }
    for (const ir::Op* product : products_of_logits(op->operands[0])) {
      add(product->operands[1], names);
      if (product->operands.size() > 2 && product->operands[2]) add(product->operands[2], names);
    }
  }
  return all;
}

// Logits that are padded meet others, of a bias or an adapter, which are padded with them: where a rule cuts one of a loss's vocabularies
// that the ranks do not divide, all of them are cut.
void cut_with_padded(const std::vector<std::set<std::string>>& vocabularies,
                     const std::map<std::string, const ir::Type*>& params, int64_t ranks,
                     std::map<std::string, Shard>& cuts) {
  const auto is_padded = [&](const std::string& name) {
    const auto cut = cuts.find(name);
    return cut != cuts.end() && cut->second.dim == 0 && params.at(name)->dims[0].size % ranks != 0;
  };
  for (const std::set<std::string>& names : vocabularies)
    if (std::ranges::any_of(names, is_padded))
      for (const std::string& name : names) cuts.try_emplace(name, Shard(0));
}

}  // namespace

bool names_itself(std::string_view pattern, std::string_view path) {
  return std::ranges::any_of(alternatives(pattern), [&](const std::string& one) { return names_one(one, path); });
}

bool names(std::string_view pattern, std::string_view path) {
  return std::ranges::any_of(alternatives(pattern), [&](const std::string& one) {
    return names_one(one, path) || (!module_of(path).empty() && names_one(one, module_of(path)));
  });
}

std::map<std::string, Shard> find_cuts(const ir::Graph& graph, const TensorParallel& tensor, int64_t ranks) {
  std::map<std::string, const ir::Type*> params;
  std::vector<std::string> paths;
  for (const auto& op : graph.ops()) {
    if (!op->is("param")) continue;
    paths.push_back(op->attr<std::string>("name"));
    params[paths.back()] = &op->result()->type();
  }
  const std::vector<std::set<std::string>> vocabularies = find_vocabularies(graph);
  const auto is_vocabulary = [&](const std::string& path) {
    return std::ranges::any_of(vocabularies, [&](const std::set<std::string>& names) { return names.contains(path); });
  };
  std::map<std::string, Shard> cuts;
  std::vector<Named> all;
  for (const TensorParallelRule& rule : tensor.rules) {
    bool is_named = false, is_used = false;
    for (const std::string& path : paths) {
      if (!names(rule.pattern, path)) continue;
      is_named = true;
      const auto& dims = params.at(path)->dims;
      if (rule.cut.dim >= std::ssize(dims)) continue;
      is_used = true;
      if (!cuts.emplace(path, rule.cut).second) continue;
      all.push_back(
          {&rule, path, dims[static_cast<size_t>(rule.cut.dim)].size, rule.cut.dim == 0 && is_vocabulary(path)});
    }
    if (!is_used && !rule.may_name_nothing) refuse_rule(rule, paths, is_named);
  }
  check_divides(all, graph.mesh, ranks);
  cut_with_padded(vocabularies, params, ranks, cuts);
  return cuts;
}

}  // namespace parallel
}  // namespace sfsdp
