// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/plan/verify/row_layouts.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
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

// The dimension that the rows are of has to be there as it was.
RowLayouts rows_reshaped(const Op& op, const Layout& operand) {
  const std::vector<int64_t> from = op.operands[0]->type().shape(), to = op.result()->type().shape();
  const auto dim = static_cast<size_t>(operand.dim);
  for (size_t d = 0; d < to.size(); ++d)
    if (to[d] == from[dim] && elements_before(to, d) == elements_before(from, dim))
      return all_results(op, {Kind::Rows, static_cast<int64_t>(d), operand.flat});
  return {{}, "the dimension of a rank's rows is joined or taken apart"};
}

// The rank's elements are as many ranges as there are blocks, and indexes before the cut dimension, in both shapes the same.
RowLayouts reshaped(const Op& op, const Layout& operand, const Layout& named) {
  if (operand.kind == Kind::Rows) return rows_reshaped(op, operand);
  if (operand.kind != Kind::Cut) return all_results(op, operand);
  const std::vector<int64_t> from = op.operands[0]->type().shape(), to = op.result()->type().shape();
  const int64_t ranges = elements_before(from, static_cast<size_t>(operand.dim)) * operand.blocks;
  std::vector<Layout> fitting;
  for (size_t d = 0; d < to.size(); ++d) {
    const int64_t before = elements_before(to, d);
    if (before == 0 || ranges < before || ranges % before != 0 || to[d] % (ranges / before) != 0) continue;
    fitting.push_back({Kind::Cut, static_cast<int64_t>(d), -1, ranges / before});
  }
  if (fitting.empty()) return {{}, "the ranges that are cut are not those of a dimension of the result"};
  const bool is_named = std::ranges::find(fitting, named) != fitting.end();
  return all_results(op, is_named ? named : fitting.back());  // sizes of 1 stand before it
}

RowLayouts permuted(const Op& op, const Layout& operand) {
  if (operand.kind != Kind::Cut && operand.kind != Kind::Rows) return all_results(op, operand);
  return all_results(op, {operand.kind, ir::permuted_dim(op, operand.dim), operand.flat, operand.blocks});
}

// ---- by access map ----------------------------------------------------------------------------------------------------

// In how many ranges a factor is cut where an operand of these parts lies so: those of the dimension, less what stands before the factor
// there, or times the dimensions that it spans before that one. nullopt: its ranges are not cut evenly.
std::optional<int64_t> ranges_of(const std::vector<FactorPart>& parts, const FactorPart& part, const Layout& layout) {
  if (layout.kind != Kind::Cut) return std::nullopt;
  const auto first = static_cast<int64_t>(part.dim), last = first + std::max<int64_t>(std::ssize(part.rows), 1) - 1;
  if (layout.dim < first || layout.dim > last) return std::nullopt;
  int64_t before = 1, ranges = layout.blocks;
  for (const FactorPart& other : parts)
    if (other.dim == part.dim && &other < &part) before *= other.size;
  for (int64_t d = first; d < layout.dim; ++d) ranges *= part.rows[static_cast<size_t>(d - first)];
  if (before == 0 || ranges < before || ranges % before != 0) return std::nullopt;
  ranges /= before;
  return part.size % ranges == 0 ? std::optional(ranges) : std::nullopt;
}

// How a result of these parts lies of which the factor is cut in so many ranges: in one of the dimensions that it spans; `named`, if that
// is one.
std::optional<Layout> cut_in(const std::vector<FactorPart>& parts, const FactorPart& part, int64_t ranges,
                             const Layout& named) {
  if (ranges_of(parts, part, named) == ranges) return named;
  Layout layout{Kind::Cut, static_cast<int64_t>(part.dim), -1, ranges};
  for (const FactorPart& other : parts)
    if (other.dim == part.dim && &other < &part) layout.blocks *= other.size;
  return part.rows.empty() || part.rows[0] % ranges == 0 ? std::optional(layout) : std::nullopt;
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
  ByMap(const Op& op, std::vector<Layout> operands, const std::vector<Layout>& named)
      : op_(op),
        operands_(std::move(operands)),
        named_(named),
        clauses_(ir::parts_of(op)),
        map_(ir::map_of(op.opcode.row())) {
    // Zeros of a size that is given are the same, however what is not read lies.
    for (size_t k = 0; k < operands_.size(); ++k)
      if (has(k) && op.has_attr("size") &&
          std::ranges::none_of(clauses_, [&](const ClauseParts& c) { return c.operands[k].has_value(); }))
        operands_[k] = {};
  }

  RowLayouts layouts() const {
    if (clauses_.empty()) return {{}, concat("no row says how ", op_.opcode, " may be cut")};
    if (const auto rows = std::ranges::find(operands_, Kind::Rows, &Layout::kind); rows != operands_.end())
      return of_rows(*rows);
    const bool summands = std::ranges::find(operands_, Kind::Summand, &Layout::kind) != operands_.end();
    return summands ? of_summands() : of_cuts();
  }

 private:
  bool has(size_t k) const { return k < op_.operands.size() && op_.operands[k] != nullptr; }

  // Those of a group that are there are all the summands, or zeros, which add up to zeros; all else is whole.
  RowLayouts of_summands() const {
    const auto is_group = [&](const std::vector<size_t>& group) {
      for (size_t k = 0; k < op_.operands.size(); ++k) {
        if (!has(k)) continue;
        const bool in_group = std::ranges::find(group, k) != group.end(), summand = operands_[k].kind == Kind::Summand;
        if (in_group != summand && !(in_group && op_.operands[k]->producer()->is("aten.new_zeros"))) return false;
      }
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

  // What has the rows' factor has it as a dimension of its own, by the same offsets, and makes each row of the same row.
  RowLayouts of_rows(const Layout& rows) const {
    if (map_->by_place || ir::draws(op_))
      return {{}, "what it makes of an element depends on its place, which a rank's rows do not have"};
    const FactorPart* factor = nullptr;
    for (const ClauseParts& clause : clauses_)
      for (size_t k = 0; k < operands_.size() && !factor; ++k)
        if (has(k) && operands_[k].kind == Kind::Rows && clause.operands[k])
          for (const FactorPart& part : *clause.operands[k])
            if (stands_alone(*op_.operands[k], part, operands_[k].dim)) factor = &part;
    if (!factor) return {{}, "a rank's rows are read as if they were all"};
    RowLayouts made = all_results(op_, {});
    for (const ClauseParts& clause : clauses_) {
      bool met = false;
      for (size_t k = 0; k < op_.operands.size(); ++k) {
        if (!has(k)) continue;
        const FactorPart* part = clause.operands[k] ? ir::find_part(*clause.operands[k], *factor) : nullptr;
        const bool has_rows = part && (part->size > 1 || is_elsewhere(*part));
        const Layout expected = has_rows ? Layout{Kind::Rows, static_cast<int64_t>(part->dim), rows.flat} : Layout();
        if (clause.operands[k] && operands_[k] != expected)
          return {{}, concat("operand ", k, " is ", to_text(operands_[k]), " where others are a rank's rows")};
        if (has_rows && (part->mark != ' ' || !stands_alone(*op_.operands[k], *part, operands_[k].dim)))
          return {{}, concat("operand ", k, " is a rank's rows where the op reads others")};
        met |= has_rows;
      }
      for (size_t r = 0; met && r < clause.results.size(); ++r) {
        const ir::Value& result = *op_.results()[clause.first_result + r];
        const FactorPart* part = ir::find_part(clause.results[r], *factor);
        if (!part || !stands_alone(result, *part, static_cast<int64_t>(part->dim)))
          return {{}, "a rank's rows are added up, or joined with others"};
        made.results[clause.first_result + r] = {Kind::Rows, static_cast<int64_t>(part->dim), rows.flat};
      }
    }
    return made;
  }

  // What is read or written at another place than the result's is not broadcast, where it is one row.
  static bool is_elsewhere(const FactorPart& part) { return part.mark == '~' || part.mark == '@'; }

  static bool stands_alone(const ir::Value& value, const FactorPart& part, int64_t dim) {
    return static_cast<int64_t>(part.dim) == dim && part.size == value.type().dims[part.dim].size;
  }

  // Which factor is cut: the first of the cut dimension that all operands agree on.
  RowLayouts of_cuts() const {
    if (map_->by_place || ir::draws(op_))
      return {{}, "what it makes of an element depends on its place, so that no part may be cut out"};
    RowLayouts made = all_results(op_, {});
    std::string wrong;
    for (const CutFactor& cut : candidates()) {
      made = by_factor(cut);
      if (made.wrong.empty()) return made;
      if (wrong.empty()) wrong = made.wrong;
    }
    made.wrong = wrong;  // none: no result reads what is cut
    return made;
  }

  struct CutFactor {
    FactorPart factor;
    int64_t ranges = 1;
  };

  std::vector<CutFactor> candidates() const {
    for (const ClauseParts& clause : clauses_)
      for (size_t k = 0; k < operands_.size(); ++k) {
        if (operands_[k].kind != Kind::Cut || !clause.operands[k]) continue;
        std::vector<CutFactor> found;
        for (const FactorPart& part : *clause.operands[k])
          if (const auto ranges = ranges_of(*clause.operands[k], part, operands_[k])) found.push_back({part, *ranges});
        return found;
      }
    return {};
  }

  RowLayouts by_factor(const CutFactor& cut) const {
    RowLayouts made = all_results(op_, {});
    for (const ClauseParts& clause : clauses_) {
      bool met = false, added = false;
      for (size_t k = 0; k < op_.operands.size(); ++k) {
        if (!has(k) || !clause.operands[k]) continue;
        const FactorPart* part = ir::find_part(*clause.operands[k], cut.factor);
        if (part && part->size != cut.factor.size && part->size != 1)
          return {{}, concat("operand ", k, " has ", part->size, " where another one has ", cut.factor.size)};
        if (made.wrong = check_operand(k, *clause.operands[k], part, cut.ranges); !made.wrong.empty()) return made;
        if (!part || operands_[k].kind != Kind::Cut) continue;
        met = true;
        added |= part->mark == '+';
      }
      if (!met) continue;
      if (added && !adds_up(clause, cut.factor))
        return {{}, "what is cut is added up, in what the op is not linear in; it would need the whole"};
      for (size_t r = 0; r < clause.results.size(); ++r) {
        const FactorPart* part = ir::find_part(clause.results[r], cut.factor);
        const auto layout = part ? cut_in(clause.results[r], *part, cut.ranges, named_[clause.first_result + r])
                                 : std::optional(Layout{Kind::Summand});
        if (!layout) return {{}, "the ranges of the cut factor are not those of a dimension of the result"};
        made.results[clause.first_result + r] = *layout;
      }
    }
    return made;
  }

  std::string check_operand(size_t k, const std::vector<FactorPart>& parts, const FactorPart* part,
                            int64_t ranges) const {
    const Layout& layout = operands_[k];
    const bool here = part && ranges_of(parts, *part, layout) == ranges;
    if (layout.kind == Kind::Cut && !here) return concat("operand ", k, " is cut in another factor");
    if (here && part->mark != ' ' && part->mark != '+')
      return concat("operand ", k, " is a part where the op reads the whole dimension");
    if (part && !here && (part->size > 1 || is_elsewhere(*part)))
      return concat("operand ", k, " is whole where another one is cut");
    return "";
  }

  // All that the clause reads of one group is added up over the factor.
  bool adds_up(const ClauseParts& clause, const FactorPart& factor) const {
    return std::ranges::any_of(map_->linear, [&](const std::vector<size_t>& group) {
      return std::ranges::all_of(group, [&](size_t k) {
        if (!has(k) || !clause.operands[k]) return true;
        const FactorPart* part = ir::find_part(*clause.operands[k], factor);
        return part && part->mark == '+' && operands_[k].kind == Kind::Cut;
      });
    });
  }

  const Op& op_;
  std::vector<Layout> operands_;
  const std::vector<Layout>& named_;  // what the types of the results say
  const std::vector<ClauseParts> clauses_;
  const ir::AccessMap* map_;
};

}  // namespace

std::string to_text(const Layout& layout) {
  if (layout.part >= 0) {
    Layout all = layout;
    all.part = -1;
    return concat(to_text(all), ", of dimension ", layout.part, " the part of ",
                  layout.shift == 0 ? "its own rank" : concat("the rank ", layout.shift, " before"));
  }
  if (layout.rows >= 0) {
    Layout all = layout;
    all.rows = -1;
    return concat(to_text(all), ", the rows ", layout.first, " to before ", layout.last, " of a rank's ", layout.rows);
  }
  switch (layout.kind) {
    case Kind::Whole: return "whole";
    case Kind::Cut:
      return concat("cut in dimension ", layout.dim,
                    layout.blocks == 1 ? "" : concat(", in ", layout.blocks, " blocks"));
    case Kind::Summand: return "a summand";
    case Kind::Flat: return "a buffer of parts";
    case Kind::Rows: return concat("a rank's rows, in dimension ", layout.dim);
    case Kind::Passed: return concat("the part of the rank ", layout.shift, " before, cut in dimension ", layout.dim);
    case Kind::Terms:
      return concat("terms ", layout.first, " to ", layout.last,
                    layout.flat < 0 ? "" : concat(" of gradient ", layout.flat), " of the part of ",
                    layout.shift == 0 ? "its own rank" : concat("the rank ", layout.shift, " before"));
    case Kind::Attended: return concat("attention to keys of ranks ", layout.first, " to ", layout.last, " before");
  }
  return "";
}

RowLayouts row_layouts(const Op& op, const std::vector<Layout>& operands, const std::vector<Layout>& named) {
  const auto is_whole = [](const Layout& layout) { return layout.kind == Kind::Whole; };
  if (std::ranges::all_of(operands, is_whole)) return all_results(op, {});
  if (ir::has_flag(op, ir::kReshape)) return reshaped(op, operands[0], named.at(0));
  if (ir::has_flag(op, ir::kPermute)) return permuted(op, operands[0]);
  return ByMap(op, operands, named).layouts();
}

}  // namespace sfsdp::plan
