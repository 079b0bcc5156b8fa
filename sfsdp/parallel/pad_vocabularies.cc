// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/pad_vocabularies.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/access.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/mesh/chunk.h"
#include "sfsdp/parallel/localise.h"

namespace sfsdp::parallel {
namespace {

using ir::ClauseParts, ir::FactorPart, ir::Op, ir::Type, ir::Value;

// The dimension that is padded, and what it is of the whole.
struct Padded {
  size_t dim = 0;
  int64_t whole = 0;
  bool operator==(const Padded&) const = default;
};

[[noreturn]] void refuse(const Op& op, const Value& value, int64_t whole, const MeshAxis& axis) {
  throw UserError(
      concat(verb_of(axis.name), ir::opcode_at(op), " reads %", value.name(), ", of a vocabulary of ", whole, " that ",
             axis.name, " = ", axis.size,
             " does not divide\n  expected lookups, products and a loss in parts to read it; or a vocabulary of ",
             padded_length(whole, axis.size), ", or no rule for its weight"));
}

class Padder {
 public:
  Padder(ir::Graph& graph, const std::map<std::string, int64_t>& cuts, const MeshAxis& axis, bool loss_parallel)
      : graph_(graph), cuts_(cuts), axis_(axis), loss_parallel_(loss_parallel) {}

  // First all values are found, as sizes have to be alike while maps are read; then they grow.
  void run() {
    for (const auto& op : graph_.ops()) visit(*op);
    if (padded_.empty()) return;
    for (const Value* output : graph_.outputs)
      if (const Padded* at = padding_of(output)) refuse(*output->producer(), *output, at->whole, axis_);
    for (const auto& op : graph_.ops()) grow(*op);
  }

 private:
  const Padded* padding_of(const Value* value) const {
    const auto found = value ? padded_.find(value) : padded_.end();
    return found == padded_.end() ? nullptr : &found->second;
  }

  void visit(Op& op) {
    if (op.is("param")) return visit_param(op);
    if (op.is("embedding_backward")) {
      const Padded* table = op.bwd_of && op.bwd_of->is("embedding") ? padding_of(op.bwd_of->operands[0]) : nullptr;
      if (table) padded_[op.result()] = *table;
      return;
    }
    const auto first = std::ranges::find_if(op.operands, [&](const Value* value) { return padding_of(value); });
    if (first == op.operands.end()) return;
    const size_t operand = static_cast<size_t>(first - op.operands.begin());
    const Padded at = *padding_of(*first);
    if (op.is("embedding") && operand == 0) {
      op.attrs["num_weights"] = at.whole;
    } else if (op.is("cross_entropy") && operand == 0 && at.dim == 1) {
      if (!loss_parallel_)
        throw UserError(concat(verb_of(axis_.name), "the logits at ", op.module_path, ", of a vocabulary of ", at.whole,
                               " that ", axis_.name, " = ", axis_.size, " does not divide, are gathered for the loss",
                               "\n  expected loss_parallel, or a vocabulary of ", padded_length(at.whole, axis_.size)));
      op.attrs["classes"] = at.whole;
    } else if (op.is("cross_entropy_backward") && operand == 1 && at.dim == 1) {
      op.attrs["classes"] = at.whole;
      padded_[op.result()] = at;
    } else if (op.is("gradient")) {
      padded_[op.result()] = at;
    } else if (ir::has_flag(op, ir::kReshape) || ir::has_flag(op, ir::kPermute)) {
      view(op, at);
    } else {
      by_map(op, **first, at);
    }
  }

  void visit_param(Op& op) {
    const auto cut = cuts_.find(op.attr<std::string>("name"));
    if (cut == cuts_.end()) return;
    const int64_t size = op.result()->type().dims[static_cast<size_t>(cut->second)].size;
    if (size % axis_.size == 0) return;
    SFSDP_CHECK(cut->second == 0, cut->first, " is cut in dimension ", cut->second, " of size ", size);
    padded_[op.result()] = {0, size};
    op.attrs["vocabulary"] = size;
  }

  // The dimension stays one by itself, with as many elements before it.
  void view(const Op& op, const Padded& at) {
    const Type &from = op.operands[0]->type(), &to = op.result()->type();
    std::optional<size_t> found;
    if (ir::has_flag(op, ir::kPermute)) {
      found = static_cast<size_t>(ir::permuted_dim(op, static_cast<int64_t>(at.dim)));
    } else if (!op.has_attr("stride")) {
      const auto before = [](const Type& type, size_t dim) {
        int64_t elements = 1;
        for (size_t d = 0; d < dim; ++d) elements *= type.dims[d].size;
        return elements;
      };
      for (size_t d = 0; d < to.dims.size(); ++d)
        if (to.dims[d].size == at.whole && before(to, d) == before(from, at.dim)) found = d;
    }
    if (!found) refuse(op, *op.operands[0], at.whole, axis_);
    padded_[op.result()] = {*found, at.whole};
  }

  // Elements of padding are made of padding alone. Where they are added up these are gradients, which are 0: only a product does it.
  void by_map(const Op& op, const Value& value, const Padded& at) {
    bool any = false;
    for (const ClauseParts& clause : ir::parts_of(op)) {
      std::optional<FactorPart> factor;
      for (size_t k = 0; k < op.operands.size() && !factor; ++k)
        if (const Padded* of = padding_of(op.operands[k]); of && clause.operands[k])
          if (const auto cut = ir::cut_factor(*clause.operands[k], of->dim, 1)) factor = *cut->part;
      if (!factor) continue;
      any = true;
      for (size_t k = 0; k < op.operands.size(); ++k)
        if (op.operands[k] && clause.operands[k] && !fits(op, k, *clause.operands[k], *factor, at))
          refuse(op, value, at.whole, axis_);
      for (size_t r = 0; r < clause.results.size(); ++r)
        if (const FactorPart* part = ir::find_part(clause.results[r], *factor)) {
          const Value* result = op.results()[clause.first_result + r].get();
          if (result->type().dims[part->dim].size != at.whole) refuse(op, value, at.whole, axis_);
          padded_[result] = {part->dim, at.whole};
        }
    }
    if (!any) refuse(op, value, at.whole, axis_);
  }
  bool fits(const Op& op, size_t k, const std::vector<FactorPart>& parts, const FactorPart& factor,
            const Padded& at) const {
    const Padded* padded = padding_of(op.operands[k]);
    const FactorPart* part = ir::find_part(parts, factor);
    if (!part || part->size == 1) return !padded;
    const bool is_read = part->mark == ' ' || (part->mark == '+' && op.is("linear_dx", "aten.mm"));
    return is_read && padded && *padded == Padded{part->dim, at.whole} && part->size == at.whole;
  }

  void grow(Op& op) {
    std::vector<Type> whole;
    bool any = false;
    for (const auto& result : op.results()) {
      Type type = result->type();
      whole.push_back(type);
      const Padded* at = padding_of(result.get());
      if (!at) continue;
      any = true;
      type.dims[at->dim].size = padded_length(at->whole, axis_.size);
      result->set_type(type);
    }
    if (any) resize(op, whole, axis_.name);
  }

  ir::Graph& graph_;
  const std::map<std::string, int64_t>& cuts_;
  const MeshAxis& axis_;
  const bool loss_parallel_;
  std::unordered_map<const Value*, Padded> padded_;
};

}  // namespace

void pad_vocabularies(ir::Graph& graph, const std::map<std::string, int64_t>& cuts, const MeshAxis& axis,
                      bool loss_parallel) {
  Padder(graph, cuts, axis, loss_parallel).run();
}

void check_padded(const ir::Graph& graph) {
  for (const auto& op : graph.ops())
    if (!op->has_attr("axis") && (op->has_attr("classes") || (op->is("embedding") && op->has_attr("num_weights"))))
      throw UserError(
          concat("tensor_parallel: ", ir::opcode_at(*op), " reads %", op->operands[0]->name(),
                 " as a whole, of a vocabulary that tp does not divide\n  expected each rank to have its part, ",
                 "without a constraint on it"));
}

}  // namespace sfsdp::parallel
