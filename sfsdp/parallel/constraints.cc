// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/constraints.h"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/index.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::parallel {
namespace {

using ir::Op, ir::Placement, ir::Value;

// The module of a path and all that it lies in: "a.b.c", "a.b", "a".
std::vector<std::string_view> modules_of(std::string_view path) {
  std::vector<std::string_view> modules;
  while (!path.empty()) {
    modules.push_back(path);
    const size_t dot = path.rfind('.');
    path = dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
  }
  return modules;
}

bool is_within(std::string_view path, std::string_view module) {
  return path.starts_with(module) && (path.size() == module.size() || path[module.size()] == '.');
}

// What forward makes of parameters and the batch.
struct Activations {
  std::unordered_set<const Value*> weights,
      values;  // made of parameters alone; of both: neither a weight nor a table of angles
  std::unordered_set<const Op*>
      loss;  // after the last product with a weight: makes what the step returns, and no op of forward that follows reads a weight
};

Activations find_activations(const ir::Graph& graph, const ir::Index& index) {
  std::unordered_set<const Value*> of_batch;
  Activations found;
  for (const auto& op : graph.ops()) {
    const auto reads = [&](const std::unordered_set<const Value*>& values) {
      return std::ranges::any_of(op->operands, [&](const Value* operand) { return values.contains(operand); });
    };
    const bool is_both = reads(found.values);
    const bool is_param = op->is("param") || reads(found.weights), is_batch = op->is("input") || reads(of_batch);
    for (const auto& result : op->results()) {
      if (is_batch || is_both) of_batch.insert(result.get());
      if (is_both || (is_param && is_batch))
        found.values.insert(result.get());
      else if (is_param)
        found.weights.insert(result.get());
    }
  }
  const auto follows = [&](const Op* reader) {
    return reader->section != ir::Section::Fwd || found.loss.contains(reader);
  };
  const std::unordered_set<const Value*> returned(graph.outputs.begin(), graph.outputs.end());
  const auto is_for_loss = [&](const auto& result) {
    return returned.contains(result.get()) || std::ranges::any_of(index.readers(result.get()), [&](const Op* reader) {
             return reader->section == ir::Section::Loss || found.loss.contains(reader);
           });
  };
  for (size_t i = graph.ops().size(); i-- > 0;) {
    const auto& op = graph.ops()[i];
    const auto is_last = [&](const auto& result) { return std::ranges::all_of(index.readers(result.get()), follows); };
    const auto is_weight = [&](const Value* operand) { return found.weights.contains(operand); };
    if (op->section == ir::Section::Fwd && !ir::is_root(*op) && std::ranges::none_of(op->operands, is_weight) &&
        std::ranges::all_of(op->results(), is_last) && std::ranges::any_of(op->results(), is_for_loss))
      found.loss.insert(op.get());
  }
  return found;
}

class Finder {
 public:
  Finder(const ir::Graph& graph, int64_t ranks)
      : graph_(graph), ranks_(ranks), index_(graph), activations_(find_activations(graph, index_)) {
    for (const auto& op : graph.ops())
      if (op->section == ir::Section::Fwd)
        for (const std::string_view module : modules_of(op->module_path)) modules_.insert(module);
  }

  void add(const Constraint& constraint) {
    std::set<std::string_view> named;
    for (const std::string_view module : modules_)
      if (names_itself(constraint.pattern, module)) named.insert(module);
    if (named.empty()) refuse_unknown(constraint);
    bool any = false;
    for (const auto& op : graph_.ops())
      for (const std::string_view module : modules_of(op->module_path)) {
        if (op->section != ir::Section::Fwd || !named.contains(module)) continue;
        for (const auto& result : op->results()) {
          if (!is_result_of(*result, module)) continue;
          any = true;
          if (known_.insert(result.get()).second) add(*result, module, constraint);
        }
      }
    if (!any)
      throw UserError(concat("tensor_parallel: ", to_string(constraint), ": no value that ", *named.begin(),
                             " makes is read by ops of other modules\n  expected a module whose result others read"));
  }

  std::vector<ConstrainedValue> found;

 private:
  // What the last product gives is read by the loss, which has no module of its own.
  bool is_result_of(const Value& value, std::string_view module) const {
    if (!activations_.values.contains(&value)) return false;
    const bool is_of_loss = activations_.loss.contains(value.producer());
    return std::ranges::any_of(index_.readers(&value), [&](const Op* reader) {
      return reader->section == ir::Section::Loss ||
             (reader->section == ir::Section::Fwd &&
              (!is_within(reader->module_path, module) || (!is_of_loss && activations_.loss.contains(reader))));
    });
  }

  void add(const Value& value, std::string_view module, const Constraint& constraint) {
    if (!constraint.cut) return found.push_back({&value, Placement::replicate(), &constraint});
    const int64_t dim = constraint.cut->dim;
    const std::string what = concat("tensor_parallel: ", to_string(constraint), ": %", value.name(), " of ",
                                    ir::opcode_at(*value.producer()), ", which ", module, " gives, is ", value.type());
    if (dim >= std::ssize(value.type().dims))
      throw UserError(
          concat(what, ", and has no dimension ", dim, "\n  expected one of its dimensions, or Replicate()"));
    if (value.type().dims[static_cast<size_t>(dim)].size % ranks_ != 0)
      throw UserError(concat(what, ", of which tp = ", ranks_, " does not divide dimension ", dim,
                             "\n  expected a dimension that it divides, or Replicate()"));
    found.push_back({&value, Placement::shard(dim), &constraint});
  }

  [[noreturn]] void refuse_unknown(const Constraint& constraint) const {
    std::vector<std::string> paths;
    for (const std::string_view module : modules_) paths.push_back(with_stars(std::string(module)));
    throw UserError(concat("tensor_parallel: ", to_string(constraint), " names no module\n  expected a path such as ",
                           paths.empty() ? "layers.0" : paths[0], did_you_mean(constraint.pattern, paths)));
  }

  const ir::Graph& graph_;
  const int64_t ranks_;
  const ir::Index index_;
  const Activations activations_;
  std::set<std::string_view> modules_;  // of forward
  std::unordered_set<const Value*> known_;
};

}  // namespace

std::vector<ConstrainedValue> find_constrained(const ir::Graph& graph, const std::vector<Constraint>& constraints,
                                               int64_t ranks) {
  if (constraints.empty()) return {};
  Finder finder(graph, ranks);
  for (const Constraint& constraint : constraints) finder.add(constraint);
  return std::move(finder.found);
}

}  // namespace sfsdp::parallel
