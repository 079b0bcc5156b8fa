// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/passes/canonical/finder.h"

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/part.h"

namespace sfsdp::passes {
namespace {

using ir::Attr, ir::Op, ir::Term, ir::Value;
using Attributes = ir::Emitter::Attributes;

std::optional<double> number(const Attr& attr) {
  if (const auto* whole = std::get_if<int64_t>(&attr)) return static_cast<double>(*whole);
  if (const auto* real = std::get_if<double>(&attr)) return *real;
  return std::nullopt;
}

// Dimensions, one or a list, counted from 0.
std::vector<int64_t> dims_of(const Attr& attr, size_t rank) {
  std::vector<int64_t> dims;
  if (const auto* one = std::get_if<int64_t>(&attr)) dims = {*one};
  if (const auto* all = std::get_if<std::vector<int64_t>>(&attr)) dims = *all;
  for (int64_t& dim : dims)
    if (dim < 0) dim += static_cast<int64_t>(rank);
  return dims;
}

bool same_attr(const std::string& key, const Attr& a, const Attr& b, size_t rank) {
  if (key == "dim") return dims_of(a, rank) == dims_of(b, rank);
  if (number(a) && number(b)) return *number(a) == *number(b);
  return a.index() == b.index() && concat(a) == concat(b);
}

// That a copy to another dtype, or a number, is strided is no news.
bool says_nothing(const Op& op, const std::string& key, const Attr& attr) {
  const auto* layout = std::get_if<int64_t>(&attr);
  return op.is("aten._to_copy", "aten.scalar_tensor") && key == "layout" && layout && *layout == 0;
}

// How many dimensions `dim` counts in: the result's where an op adds one.
size_t rank_of_dims(const Op& op) {
  const size_t operand = op.operands.empty() || !op.operands[0] ? 0 : op.operands[0]->type().dims.size();
  return std::max(operand, op.is("aten.stack", "aten.select_backward") ? op.result()->type().dims.size() : 0);
}

// A slice that ends beyond its dimension ends with it.
Attr without_excess(const Op& op, const std::string& key, const Attr& attr, size_t rank) {
  const auto* end = std::get_if<int64_t>(&attr);
  if (!end || key != "end" || !op.is("aten.slice_backward")) return attr;
  const int64_t dim = dims_of(op.attrs.at("dim"), rank).at(0);
  return std::min(*end, op.result()->type().dims.at(static_cast<size_t>(dim)).size);
}

bool same_attrs(const Op& op, const Attributes& attrs) {
  const size_t rank = rank_of_dims(op);
  for (const auto& [key, attr] : op.attrs)
    if (!attrs.contains(key) && !says_nothing(op, key, attr)) return false;
  return std::ranges::all_of(attrs, [&](const auto& wanted) {
    const auto found = op.attrs.find(wanted.first);
    return found != op.attrs.end() &&
           same_attr(wanted.first, without_excess(op, wanted.first, found->second, rank), wanted.second, rank);
  });
}

bool is_commutative(const std::string& opcode) {
  return opcode == "aten.add.Tensor" || opcode == "aten.mul.Tensor" || opcode == "aten.eq.Tensor";
}

}  // namespace

// The first op that computes what a number or a mask is, where there is one before it.
Op* OpFinder::first_alike(const Op& op) const {
  if (!op.is("aten.scalar_tensor", "aten.where.self")) return nullptr;
  std::vector<Term> operands;
  for (const Value* operand : op.operands) operands.push_back(term(operand));
  Op* first = find(op.opcode, operands, op.attrs, op.section);
  // A number that backward needs for itself may be one of forward's mask.
  const bool alike = first && (first->section == op.section || op.operands.empty());
  return alike && first->result()->type() == op.result()->type() ? first : nullptr;
}

OpFinder::OpFinder(const ir::Graph& graph) : at_(graph), readers_(graph), made_again_(graph) {
  std::unordered_map<const Value*, Value*> first_of;
  terms_.reserve(graph.ops().size());
  for (const auto& op : graph.ops()) {
    for (const auto& result : op->results()) {
      at_[result.get()] = terms_.size();
      terms_.push_back(ir::term_of(result.get()));
      if (const auto first = first_of.find(terms_.back().base); first != first_of.end())
        terms_.back().base = first->second;
    }
    if (Op* first = first_alike(*op)) {
      first_of[op->result()] = terms_.back().base = first->result();
      made_again_[first].push_back(op.get());
      continue;
    }
    // A view that terms look through is none of what is looked for.
    if (ir::aliased_operand(*op) >= 0 && term(op->result()).base != op->result()) continue;
    if (op->operands.empty() && !ir::is_root(*op)) numbers_.push_back(op.get());
    std::vector<const Value*> seen;
    for (Value* operand : op->operands) {
      if (!operand) continue;
      const Value* base = term(operand).base;
      if (std::ranges::find(seen, base) != seen.end()) continue;
      seen.push_back(base);
      readers_[base].push_back(op.get());
    }
  }
}

Op* OpFinder::find(const std::string& opcode, const std::vector<Term>& operands, const Attributes& attrs,
                   ir::Section section) const {
  if (!operands.empty() && !operands[0].base) return nullptr;
  const auto is_operand = [&](const Op& op, size_t at, const Term& term) {
    const Value* operand = op.operands[at];
    return operand ? ir::is_same(this->term(operand), term) : term.base == nullptr;
  };
  Op* of_forward = nullptr;
  for (Op* op : operands.empty() ? numbers_ : readers_[operands[0].base]) {
    if (op->opcode != opcode || op->operands.size() != operands.size()) continue;
    if (op->section != section && !ir::is_forward(op->section)) continue;
    bool same = true;
    for (size_t i = 0; same && i < operands.size(); ++i) same = is_operand(*op, i, operands[i]);
    if (!same && is_commutative(opcode) && operands.size() == 2)
      same = is_operand(*op, 0, operands[1]) && is_operand(*op, 1, operands[0]);
    if (!same || !same_attrs(*op, attrs)) continue;
    if (op->section == section || ir::is_forward(section)) return op;
    if (!of_forward) of_forward = op;
  }
  return of_forward;
}

std::vector<Op*> OpFinder::readers(const Term& term, const std::string& opcode) const {
  std::vector<Op*> found;
  if (!term.base) return found;
  for (Op* op : readers_[term.base])
    if (op->opcode == opcode && std::ranges::any_of(op->operands, [&](const Value* operand) {
          return operand && ir::is_same(this->term(operand), term);
        }))
      found.push_back(op);
  return found;
}

std::vector<Term> Lookup::compute(const std::string& opcode, const std::vector<Term>& operands,
                                  const std::vector<ir::Type>& results, const Attributes& attrs, bool) {
  Op* op = finder_.find(opcode, operands, attrs, section_);
  if (!op || op->results().size() != results.size()) throw NotFound();
  std::vector<Term> terms;
  for (size_t i = 0; i < results.size(); ++i) {
    // LibTorch promotes dtypes: of bf16 and f32 comes f32, which a decomposition in the dtype of x does not say. Statistics of
    // norms have the dtype that a kernel gives them; a gradient that was not asked for is a token. The layout depends on the order
    // of operands: x · rstd and rstd · x are one number, but may be two types.
    const ir::Type& made = op->results()[i]->type();
    const bool is_tensor = made.kind == ir::Type::Kind::Tensor;
    if (is_tensor && ((i == 0 && made.dtype != results[i].dtype) || !ir::same_layout(made, results[i])))
      throw NotFound();
    terms.push_back(finder_.term(op->results()[i].get()));
  }
  found_.push_back(op);
  found_.insert(found_.end(), finder_.made_again(op).begin(), finder_.made_again(op).end());
  return terms;
}

Term Lookup::view(const std::string&, const Term&, const Term& result, const Attributes&) {
  if (!result.base) throw NotFound();
  return result;
}

}  // namespace sfsdp::passes
