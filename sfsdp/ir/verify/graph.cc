// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <set>
#include <string>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/ir/lexer.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/verify/checks.h"

namespace sfsdp::ir::checks {
namespace {

// More than any machine has; what is kept per rank stays small.
constexpr int64_t kMaxRanks = int64_t{1} << 20;
constexpr int64_t kMaxMicroBatches = int64_t{1} << 20;

void check_carry(const Value& current, const Value& next, Report& report) {
  const Op& owner = *current.producer();
  if (!owner.is("param") && !owner.is("state"))
    report(concat("carry of %", current.name(), ", a result of ", owner.opcode), "expected a param or a state");
  const Type &a = current.type(), &b = next.type();
  if (a.kind != b.kind || a.dtype != b.dtype || a.shape() != b.shape())
    report(concat("carry %", current.name(), " = %", next.name(), " changes the type"),
           concat("expected ", a, ", got ", b));
}

// Before it is scaled, as what clips it does; nullptr: there is none.
const Op* marked_gradient(const Op& update) {
  const Value* value = update.operands[gradient_operand(update)];
  while (value) {
    const Op& op = *value->producer();
    if (op.is("gradient")) return &op;
    value = op.is("scale", "mul_scalar", "cast") || aliased_operand(op) == 0 ? op.operands[0] : nullptr;
  }
  return nullptr;
}

}  // namespace

Known::Known(const Graph& graph, Report& report) : storage(graph) {
  ops.reserve(graph.ops().size());
  values.reserve(graph.id_bound());
  for (const auto& op : graph.ops()) {
    ops.insert(op.get());
    for (const auto& result : op->results()) {
      values.insert(result.get());
      // Names are the graph's own work, so this is a broken graph and not a mistake in a text.
      if (graph.find_value(result->name()) != result.get())
        report(concat("%", result->name(), " is the name of two values"), "expected unique names");
    }
  }
  for (const Carry& carry : graph.carries) carried.insert(carry.current);
}

// Storages are followed from the top down: storage_of() could run in circles in a graph that is broken.
void Known::define(const Op& op, bool sound) {
  const int aliased = sound ? aliased_operand(op) : -1;
  for (const auto& result : op.results())
    storage[result.get()] = aliased < 0 ? result.get() : storage[op.operands[static_cast<size_t>(aliased)]];
}

void check_mesh(const Graph& graph, Report& report) {
  if (graph.micro_batches < 1 || graph.micro_batches > kMaxMicroBatches)
    report(concat("the step has ", graph.micro_batches, " micro-batches"), concat("expected 1 to ", kMaxMicroBatches));
  std::set<std::string> names;
  int64_t ranks = 1;
  for (const MeshAxis& axis : graph.mesh) {
    if (!is_word(axis.name) || !names.insert(axis.name).second)
      report(concat("mesh axis ", quote(axis.name), " is no name, or named twice"), "expected unique names");
    if (axis.size < 1) report(concat("mesh axis ", axis.name, " has size ", axis.size), "expected at least 1");
    ranks = saturating_product(ranks, std::max<int64_t>(axis.size, 1));
  }
  if (ranks > kMaxRanks)
    report("the mesh has too many ranks", concat("expected sizes with a product of at most ", kMaxRanks));
}

void check_sizes(const Graph& graph, Report& report) {
  int64_t rest = kMaxBytes;
  for (const auto& op : graph.ops()) {
    report.at(op.get());
    for (const auto& result : op->results()) {
      const Type& type = result->type();
      const bool fits = type.fits();
      const int64_t bytes = fits ? std::max(type.bytes(), type.span_bytes()) : 0;
      if (std::ranges::any_of(type.dims, [](const Dim& dim) { return dim.size < 0; }))
        report(concat('%', result->name(), " has a negative dimension"), concat("got ", type));
      else if (std::ranges::any_of(type.strides, [](int64_t stride) { return stride < 0; }))
        report(concat('%', result->name(), " has a negative stride"), concat("got ", type));
      else if (!fits || bytes > rest)
        return report(concat('%', result->name(), " is too large: ", type),
                      concat("expected at most ", kMaxBytes, " bytes in all values of the graph together"));
      rest -= bytes;
    }
  }
  report.at(nullptr);
}

void check_outputs(const Graph& graph, const Known& known, Report& report) {
  for (const Value* output : graph.outputs) {
    if (!known.values.contains(output)) {
      report("an output is no value of the graph", "expected a result of an op in `return`");
      continue;
    }
    if (output->type().kind == Type::Kind::Async)
      report(concat("return of %", output->name(), ", which is in flight"), "expected a tensor; insert a wait");
    check_not_donated(
        *output, [] { return std::string("return"); }, known, report);
  }
}

void check_carries(const Graph& graph, const Known& known, Report& report) {
  std::set<const Value*> seen;
  for (const Carry& carry : graph.carries) {
    if (!known.values.contains(carry.current) || !known.values.contains(carry.next)) {
      report("a carry of what is no value of the graph", "expected results of ops on both sides");
      continue;
    }
    check_carry(*carry.current, *carry.next, report);
    if (carry.current != carry.next)
      check_not_donated(
          *carry.next, [] { return std::string("carry"); }, known, report);
    if (!seen.insert(carry.current).second)
      report(concat('%', carry.current->name(), " is carried twice"), "expected one next value");
  }
}

// param= of a gradient says in words what the operands of its update say.
void check_gradients(const Graph& graph, Report& report) {
  std::set<std::string> params, marked;
  for (const auto& op : graph.ops())
    if (op->is("param")) params.insert(op->attr<std::string>("name"));
  for (const auto& op : graph.ops()) {
    report.at(op.get());
    if (op->is("gradient")) {
      const auto& name = op->attr<std::string>("param");
      if (!params.contains(name))
        report(concat(name_of(*op), " has param=", quote_if_needed(name)), "expected the name of a param of the graph");
      else if (!marked.insert(name).second)
        report(concat(name_of(*op), " is the second with param=", quote_if_needed(name)),
               "expected one gradient of a param");
    }
    const Op* gradient = is_update(*op) ? marked_gradient(*op) : nullptr;
    if (!gradient) continue;
    const Op& updated = *op->operands[0]->producer();
    if (updated.is("param") && gradient->attr<std::string>("param") != updated.attr<std::string>("name"))
      report(concat(name_of(*op), " updates ", quote_if_needed(updated.attr<std::string>("name")), " by ",
                    name_of(*gradient), " param=", quote_if_needed(gradient->attr<std::string>("param"))),
             "expected its own gradient");
  }
  report.at(nullptr);
}

}  // namespace sfsdp::ir::checks
