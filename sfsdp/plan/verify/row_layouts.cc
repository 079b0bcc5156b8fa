// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/verify/row_layouts.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/ir/access.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::plan {
namespace {

using ir::ClauseParts, ir::FactorPart, ir::Op;
using Kind = Layout::Kind;

RowLayouts all_results(const Op& op, const Layout& layout) {
  return {std::vector<Layout>(op.results().size(), layout), ""};
}

// ---- views ------------------------------------------------------------------------------------------------------------

int64_t elements_before(const std::vector<int64_t>& shape, size_t dim) {
  return std::accumulate(shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(dim), int64_t{1},
                         std::multiplies<>());
}

// The rank's elements are as many ranges as there are indexes before the cut dimension, in both shapes the same.
RowLayouts reshaped(const Op& op, const Layout& operand, const Layout& named) {
  if (operand.kind != Kind::Cut) return all_results(op, operand);
  const std::vector<int64_t> from = op.operands[0]->type().shape(), to = op.result()->type().shape();
  const int64_t before = elements_before(from, static_cast<size_t>(operand.dim));
  std::vector<size_t> fitting;
  for (size_t d = 0; d < to.size(); ++d)
    if (elements_before(to, d) == before) fitting.push_back(d);
  if (fitting.empty()) return {{}, "the dimension that is cut does not begin one of the result"};
  size_t dim = fitting.back();  // sizes of 1 stand before it
  if (named.kind == Kind::Cut && std::ranges::find(fitting, static_cast<size_t>(named.dim)) != fitting.end())
    dim = static_cast<size_t>(named.dim);
  return all_results(op, {Kind::Cut, static_cast<int64_t>(dim)});
}

RowLayouts permuted(const Op& op, const Layout& operand) {
  if (operand.kind != Kind::Cut) return all_results(op, operand);
  const auto rank = static_cast<int64_t>(op.operands[0]->type().dims.size());
  const auto wrapped = [&](int64_t dim) { return dim < 0 ? dim + rank : dim; };
  int64_t dim = -1;
  if (const auto* dims = op.find_attr<std::vector<int64_t>>("dims")) {
    for (size_t i = 0; i < dims->size(); ++i)
      if (wrapped((*dims)[i]) == operand.dim) dim = static_cast<int64_t>(i);
  } else {
    const bool named = op.has_attr("dim0");
    const int64_t a = named ? wrapped(op.attr<int64_t>("dim0")) : 0, b = named ? wrapped(op.attr<int64_t>("dim1")) : 1;
    dim = operand.dim == a ? b : operand.dim == b ? a : operand.dim;
  }
  return all_results(op, {Kind::Cut, dim});
}

// ---- by access map ----------------------------------------------------------------------------------------------------

// Whether the part begins its dimension: what stands before it there is of size 1.
bool begins(const std::vector<FactorPart>& parts, const FactorPart& part) {
  return std::ranges::all_of(
      parts, [&](const FactorPart& other) { return other.dim != part.dim || &other >= &part || other.size == 1; });
}

const FactorPart* find(const std::vector<FactorPart>& parts, const FactorPart& factor) {
  const auto found = std::ranges::find_if(parts, [&](const FactorPart& part) { return part.is(factor); });
  return found == parts.end() ? nullptr : &*found;
}

// A cast that loses nothing: the sum of what is cast is what the sum would be.
bool widens(const Op& op) {
  if (!op.is("cast")) return false;
  const ir::DType from = op.operands[0]->type().dtype, to = op.result()->type().dtype;
  return ir::is_floating(from) && ir::is_floating(to) &&
         (from == to || ir::size_in_bytes(to) > ir::size_in_bytes(from));
}

class ByMap {
 public:
  ByMap(const Op& op, const std::vector<Layout>& operands)
      : op_(op), operands_(operands), clauses_(ir::parts_of(op)), map_(ir::map_of(op.opcode.row())) {}

  RowLayouts layouts() const {
    if (clauses_.empty()) return {{}, concat("no row says how ", op_.opcode, " may be cut")};
    const bool summands = std::ranges::find(operands_, Kind::Summand, &Layout::kind) != operands_.end();
    return summands ? of_summands() : of_cuts();
  }

 private:
  bool has(size_t k) const { return k < op_.operands.size() && op_.operands[k] != nullptr; }

  // Those of a group that are there are all the summands, and all else is whole.
  RowLayouts of_summands() const {
    const auto is_group = [&](const std::vector<size_t>& group) {
      for (size_t k = 0; k < op_.operands.size(); ++k)
        if (has(k) && (std::ranges::find(group, k) != group.end()) != (operands_[k].kind == Kind::Summand))
          return false;
      return true;
    };
    for (size_t k = 0; k < op_.operands.size(); ++k)
      if (has(k) && operands_[k].kind == Kind::Cut) return {{}, "what is cut meets a summand"};
    if (widens(op_)) return all_results(op_, {Kind::Summand});
    if (!map_ || std::ranges::none_of(map_->linear, is_group))
      return {{}, "a summand is taken for the sum, in what it is not linear in"};
    RowLayouts made = all_results(op_, {});
    for (const ClauseParts& clause : clauses_)
      for (size_t k = 0; k < op_.operands.size(); ++k)
        if (has(k) && operands_[k].kind == Kind::Summand && clause.operands[k])
          for (size_t r = 0; r < clause.results.size(); ++r) made.results[clause.first_result + r] = {Kind::Summand};
    return made;
  }

  // Which factor is cut: the first of the cut dimension that all operands agree on.
  RowLayouts of_cuts() const {
    if (map_->by_place || ir::draws(op_))
      return {{}, "what it makes of an element depends on its place, so that no part may be cut out"};
    RowLayouts made = all_results(op_, {});
    std::string wrong;
    for (const FactorPart& factor : candidates()) {
      made = by_factor(factor);
      if (made.wrong.empty()) return made;
      if (wrong.empty()) wrong = made.wrong;
    }
    made.wrong = wrong;  // none: no result reads what is cut
    return made;
  }

  std::vector<FactorPart> candidates() const {
    for (const ClauseParts& clause : clauses_)
      for (size_t k = 0; k < operands_.size(); ++k) {
        if (operands_[k].kind != Kind::Cut || !clause.operands[k]) continue;
        std::vector<FactorPart> found;
        for (const FactorPart& part : *clause.operands[k])
          if (static_cast<int64_t>(part.dim) == operands_[k].dim && begins(*clause.operands[k], part))
            found.push_back(part);
        return found;
      }
    return {};
  }

  RowLayouts by_factor(const FactorPart& factor) const {
    RowLayouts made = all_results(op_, {});
    for (const ClauseParts& clause : clauses_) {
      bool met = false, added = false;
      for (size_t k = 0; k < op_.operands.size(); ++k) {
        if (!has(k) || !clause.operands[k]) continue;
        const FactorPart* part = find(*clause.operands[k], factor);
        if (part && part->size != factor.size && part->size != 1)
          return {{}, concat("operand ", k, " has ", part->size, " where another one has ", factor.size)};
        if (made.wrong = check_operand(k, *clause.operands[k], part); !made.wrong.empty()) return made;
        if (!part || operands_[k].kind != Kind::Cut) continue;
        met = true;
        added |= part->mark == '+';
      }
      if (!met) continue;
      if (added && !adds_up(clause, factor))
        return {{}, "what is cut is added up, in what the op is not linear in; it would need the whole"};
      for (size_t r = 0; r < clause.results.size(); ++r) {
        const FactorPart* part = find(clause.results[r], factor);
        if (part && !begins(clause.results[r], *part)) return {{}, "the cut factor does not begin its dimension"};
        made.results[clause.first_result + r] =
            part ? Layout{Kind::Cut, static_cast<int64_t>(part->dim)} : Layout{Kind::Summand};
      }
    }
    return made;
  }

  std::string check_operand(size_t k, const std::vector<FactorPart>& parts, const FactorPart* part) const {
    const Layout& layout = operands_[k];
    const bool here =
        part && layout.kind == Kind::Cut && layout.dim == static_cast<int64_t>(part->dim) && begins(parts, *part);
    if (layout.kind == Kind::Cut && !here) return concat("operand ", k, " is cut in another factor");
    if (here && part->mark != ' ' && part->mark != '+')
      return concat("operand ", k, " is a part where the op reads the whole dimension");
    if (part && !here && part->size > 1) return concat("operand ", k, " is whole where another one is cut");
    return "";
  }

  // All that the clause reads of one group is added up over the factor.
  bool adds_up(const ClauseParts& clause, const FactorPart& factor) const {
    return std::ranges::any_of(map_->linear, [&](const std::vector<size_t>& group) {
      return std::ranges::all_of(group, [&](size_t k) {
        if (!has(k) || !clause.operands[k]) return true;
        const FactorPart* part = find(*clause.operands[k], factor);
        return part && part->mark == '+' && operands_[k].kind == Kind::Cut;
      });
    });
  }

  const Op& op_;
  const std::vector<Layout>& operands_;
  const std::vector<ClauseParts> clauses_;
  const ir::AccessMap* map_;
};

}  // namespace

std::string to_text(const Layout& layout) {
  switch (layout.kind) {
    case Kind::Whole: return "whole";
    case Kind::Cut: return concat("cut in dimension ", layout.dim);
    case Kind::Summand: return "a summand";
    case Kind::Flat: return "a buffer of parts";
  }
  return "";
}

RowLayouts row_layouts(const Op& op, const std::vector<Layout>& operands, const Layout& named) {
  const auto is_whole = [](const Layout& layout) { return layout.kind == Kind::Whole; };
  if (std::ranges::all_of(operands, is_whole)) return all_results(op, {});
  if (ir::has_flag(op, ir::kReshape)) return reshaped(op, operands[0], named);
  if (ir::has_flag(op, ir::kPermute)) return permuted(op, operands[0]);
  return ByMap(op, operands).layouts();
}

}  // namespace sfsdp::plan
