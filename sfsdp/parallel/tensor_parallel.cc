// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/tensor_parallel.h"

#include <algorithm>
#include <set>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/glob.h"
#include "sfsdp/base/strings.h"
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

// The parameters whose rows stand for ids or classes: tables that are looked up, weights and biases of products that make logits.
std::set<std::string> find_vocabularies(const ir::Graph& graph) {
  std::set<std::string> names;
  const auto add = [&](const ir::Value* value) {
    if (const ir::Op* param = param_of(value)) names.insert(param->attr<std::string>("name"));
  };
  for (const auto& op : graph.ops()) {
    if (op->is("embedding", "aten.embedding")) add(op->operands[0]);
    if (!op->is("cross_entropy")) continue;
    const ir::Op* logits = op->operands[0]->producer();
    while (logits->is("cast", "aten._to_copy", "aten.view")) logits = logits->operands[0]->producer();
    if (!logits->is("linear")) continue;
    add(logits->operands[1]);
    if (logits->operands.size() > 2 && logits->operands[2]) add(logits->operands[2]);
  }
  return names;
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
  const std::set<std::string> vocabularies = find_vocabularies(graph);
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
      all.push_back({&rule, path, dims[static_cast<size_t>(rule.cut.dim)].size,
                     rule.cut.dim == 0 && vocabularies.contains(path)});
    }
    if (!is_used && !rule.may_name_nothing) refuse_rule(rule, paths, is_named);
  }
  check_divides(all, graph.mesh, ranks);
  return cuts;
}

}  // namespace parallel
}  // namespace sfsdp
