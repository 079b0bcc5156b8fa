// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/op_cuts.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "sfsdp/ir/access.h"
#include "sfsdp/ir/opset.h"
#include "sfsdp/ir/ranges.h"
#include "sfsdp/parallel/placement_kinds.h"

namespace sfsdp::parallel {
namespace {

using ir::ClauseParts, ir::FactorPart, ir::Op, ir::Placement;

bool are_zeros(const ir::Value& value) { return value.producer()->is("aten.new_zeros"); }

OpCut like_first(const Op& op, const Placement& operand, const Placement& result) {
  OpCut cut{.operands = std::vector<std::optional<Placement>>(op.operands.size()),
            .results = std::vector<Placement>(op.results().size(), result)};
  cut.operands[0] = operand;
  return cut;
}

// ---- views

// As many ranges of elements are cut, one by one, before and after: of a dimension of the result that has as many, and whose ranges
// the ranks divide. The innermost, as there the ranges are fewest.
std::optional<Placement> reshaped(const Op& op, const Placement& cut, int64_t ranks) {
  const auto before = [](const std::vector<int64_t>& shape, int64_t d) {
    return std::accumulate(shape.begin(), shape.begin() + d, int64_t{1}, std::multiplies<>());
  };
  const std::vector<int64_t> from = op.operands[0]->type().shape(), to = op.result()->type().shape();
  const int64_t ranges = before(from, cut.dim) * cut.blocks;
  std::optional<Placement> found;
  for (int64_t d = 0; d < std::ssize(to); ++d) {
    const int64_t outer = before(to, d), size = to[static_cast<size_t>(d)];
    if (size == 0 || outer == 0 || ranges < outer || ranges % outer != 0) break;
    const int64_t blocks = ranges / outer;
    if (size % (blocks * ranks) == 0 && (!found || blocks < found->blocks)) found = Placement::shard(d, blocks);
  }
  return found;
}

// A rank's rows stay those of a dimension that stays what it is.
std::optional<Placement> rows_of_view(const Op& op, const Placement& rows) {
  if (ir::has_flag(op, ir::kPermute)) return Placement::rows(ir::permuted_dim(op, rows.dim), rows.blocks);
  const std::vector<int64_t> from = op.operands[0]->type().shape(), to = op.result()->type().shape();
  int64_t before = 1, outer = 1;
  for (int64_t d = 0; d < rows.dim; ++d) before *= from[static_cast<size_t>(d)];
  for (int64_t d = 0; d < std::ssize(to); outer *= to[static_cast<size_t>(d++)])
    if (outer == before && to[static_cast<size_t>(d)] == from[static_cast<size_t>(rows.dim)])
      return Placement::rows(d, rows.blocks);
  return std::nullopt;
}

std::vector<OpCut> cuts_of_view(const Op& op, const Placement& operand, int64_t ranks) {
  std::vector<OpCut> cuts;
  if (operand == kSum) cuts.push_back(like_first(op, kSum, kSum));
  if (operand.kind == Placement::Kind::Rows && !op.has_attr("stride"))
    if (const auto rows = rows_of_view(op, operand)) cuts.push_back(like_first(op, operand, *rows));
  if (operand.kind == Placement::Kind::Shard && !op.has_attr("stride")) {  // strides are the whole's
    const auto result = ir::has_flag(op, ir::kPermute)
                            ? std::optional(Placement::shard(ir::permuted_dim(op, operand.dim), operand.blocks))
                            : reshaped(op, operand, ranks);
    if (result) cuts.push_back(like_first(op, operand, *result));
  }
  cuts.push_back(like_first(op, kWhole, kWhole));
  return cuts;
}

// ---- collectives over other axes

// They move or add what is cut otherwise as they do the whole; not what is cut in the dimension that they join or cut. A sum may
// wait for another one.
std::vector<OpCut> cuts_of_collective(const Op& op, const Placement& operand) {
  std::vector<OpCut> cuts;
  const bool sums = op.is("all_gather", "all_to_all", "all_to_all_v") ||
                    (op.is("all_reduce", "reduce_scatter") && ir::reduce_op(op) == ir::ReduceOp::Sum);
  const auto moves = [&](const char* key) {
    const auto* dim = op.find_attr<int64_t>(key);
    return dim ? *dim == operand.dim : op.is("all_to_all_v") && operand.dim == 0;
  };
  const auto add = [&](const Placement& placement) {
    cuts.push_back(like_first(op, placement, placement));
    for (size_t k = 1; k < op.operands.size(); ++k) cuts.back().operands[k] = kWhole;
  };
  const bool passes = operand.kind == Placement::Kind::Shard ? !moves("dim") && !moves("split") && !moves("join")
                                                             : operand == kSum && sums;
  if (passes) add(operand);
  add(kWhole);
  return cuts;
}

// ---- by access map

// A factor, cut in so many ranges.
struct Cut {
  FactorPart factor;
  int64_t blocks = 1;
};

class Ways {
 public:
  Ways(const Op& op, const std::vector<ClauseParts>& clauses, const std::vector<Placement>& operands, int64_t ranks,
       bool cut_summands)
      : op_(op),
        operands_(operands),
        ranks_(ranks),
        cut_summands_(cut_summands),
        clauses_(clauses),
        map_(ir::map_of(op.opcode.row())) {}

  std::vector<OpCut> all() const {
    std::vector<OpCut> ways;
    if (!(map_ && map_->by_place) && !ir::draws(op_) && reads_all())
      for (const Cut& cut : cuts_met())
        if (auto way = by_cut(cut)) ways.push_back(std::move(*way));
    if (!(map_ && map_->by_place) && !ir::draws(op_) && reads_all())
      if (auto way = of_rows()) ways.push_back(std::move(*way));
    if (auto way = of_blocks()) ways.push_back(std::move(*way));
    if (auto way = of_summands()) ways.push_back(std::move(*way));
    ways.push_back(whole());
    return ways;
  }

 private:
  bool is_read(size_t k) const {
    return clauses_.empty() ||
           std::ranges::any_of(clauses_, [&](const ClauseParts& c) { return c.operands[k].has_value(); });
  }

  // An operand that is not read says how large the result is, unless an attribute does: it would have to be cut with it.
  bool reads_all() const {
    const auto* told =
        op_.find_attr<std::vector<int64_t>>("normalized_shape");  // of the bias whose gradient a norm makes
    for (size_t k = 0; k < op_.operands.size(); ++k)
      if (op_.operands[k] && !is_read(k) && !(told && op_.operands[k]->type().shape() == *told)) return false;
    return true;
  }

  // The dimension that the operand is cut in, or may be; -1: none. A summand's: samples lie one after the other in memory, the
  // positions of several do not.
  int64_t cut_dim(size_t k) const {
    if (operands_[k].kind == Placement::Kind::Shard) return operands_[k].dim;
    if (operands_[k] != kSum || !cut_summands_) return -1;
    const auto& dims = op_.operands[k]->type().dims;
    if (dims.size() < 3) return -1;
    return dims[0].size % ranks_ == 0 ? 0 : 1;
  }

  // What the operands are cut in.
  std::vector<Cut> cuts_met() const {
    std::vector<Cut> met;
    for (const ClauseParts& clause : clauses_)
      for (size_t k = 0; k < operands_.size(); ++k) {
        if (!op_.operands[k] || !clause.operands[k] || cut_dim(k) < 0) continue;
        const bool is_cut = operands_[k].kind == Placement::Kind::Shard;
        const auto cut =
            ir::cut_factor(*clause.operands[k], static_cast<size_t>(cut_dim(k)), is_cut ? operands_[k].blocks : 1);
        const auto is_it = [&](const Cut& other) { return other.factor.is(*cut->part) && other.blocks == cut->blocks; };
        if (cut && std::ranges::none_of(met, is_it)) met.push_back({*cut->part, cut->blocks});
      }
    return met;
  }

  OpCut whole() const {
    OpCut way{.operands = std::vector<std::optional<Placement>>(op_.operands.size()),
              .results = std::vector<Placement>(op_.results().size(), kWhole)};
    for (size_t k = 0; k < op_.operands.size(); ++k)
      if (op_.operands[k] && (is_read(k) || !op_.has_attr("size"))) way.operands[k] = kWhole;
    return way;
  }

  // How a value lies whose part is cut so; nullopt: the ranks do not divide its ranges.
  std::optional<Placement> placement_of(const ir::Value& value, const std::vector<FactorPart>& parts,
                                        const FactorPart& part, int64_t blocks) const {
    const ir::DimCut cut = ir::cut_dim(parts, part, blocks);
    if (part.size % (blocks * ranks_) != 0 || value.type().dims[cut.dim].size % (cut.blocks * ranks_) != 0)
      return std::nullopt;
    return Placement::shard(static_cast<int64_t>(cut.dim), cut.blocks);
  }

  // One element stands for all, but not where it is read or written at another place.
  static bool is_broadcast(const FactorPart& part) { return part.size == 1 && part.mark != '~' && part.mark != '@'; }

  std::optional<OpCut> by_cut(const Cut& cut) const {
    OpCut way = whole();
    int64_t size = 0;  // of the factor, the same in all that have it
    for (const ClauseParts& clause : clauses_)
      for (size_t k = 0; k < op_.operands.size(); ++k) {
        if (!op_.operands[k] || !clause.operands[k]) continue;
        const FactorPart* part = ir::find_part(*clause.operands[k], cut.factor);
        if (!part || is_broadcast(*part)) continue;
        if (size != 0 && part->size != size) return std::nullopt;
        size = part->size;
        if (part->mark != ' ' && part->mark != '+') return std::nullopt;
        way.operands[k] = placement_of(*op_.operands[k], *clause.operands[k], *part, cut.blocks);
        if (!way.operands[k]) return std::nullopt;
      }
    for (const ClauseParts& clause : clauses_)
      if (!set_results(clause, cut, way)) return std::nullopt;
    return way;
  }

  bool set_results(const ClauseParts& clause, const Cut& cut, OpCut& way) const {
    bool met = false, added = false;
    for (size_t k = 0; k < op_.operands.size(); ++k) {
      const FactorPart* part =
          op_.operands[k] && clause.operands[k] ? ir::find_part(*clause.operands[k], cut.factor) : nullptr;
      if (!part || is_broadcast(*part)) continue;
      met = true;
      added |= part->mark == '+';
    }
    if (!met) return true;
    if (added && !adds_up(clause, cut.factor)) return false;
    for (size_t r = 0; r < clause.results.size(); ++r) {
      const size_t index = clause.first_result + r;
      const FactorPart* part = ir::find_part(clause.results[r], cut.factor);
      const auto placement =
          part ? placement_of(*op_.results()[index], clause.results[r], *part, cut.blocks) : std::optional(kSum);
      if (!placement) return false;
      way.results[index] = *placement;
    }
    return true;
  }

  // Where ranges of a dimension are taken out, or put side by side, that is cut in blocks, and each range is some whole blocks: a rank
  // has its part of each block before and after.
  std::optional<OpCut> of_blocks() const {
    const auto is_cut = [](const Placement& placement) { return placement.kind == Placement::Kind::Shard; };
    if (std::ranges::none_of(operands_, is_cut)) return std::nullopt;
    const auto ranges = ir::ranges_of(op_);
    if (!ranges) return std::nullopt;
    const auto size_of = [&](const ir::Value& value) { return value.type().dims[ranges->dim].size; };
    const auto dim = static_cast<int64_t>(ranges->dim);
    int64_t block = 0;
    for (size_t k = 0; k < operands_.size() && block == 0; ++k)
      if (is_cut(operands_[k]) && operands_[k].dim == dim) block = size_of(*op_.operands[k]) / operands_[k].blocks;
    if (block == 0 || block % ranks_ != 0) return std::nullopt;
    const auto placed = [&](const ir::Value& value) { return Placement::shard(dim, size_of(value) / block); };
    const auto is_of_blocks = [&](int64_t size) { return size > 0 && size % block == 0; };
    OpCut way = whole();
    for (const Chunk& part : ranges->parts)
      if (part.offset % block != 0 || !is_of_blocks(part.length)) return std::nullopt;
    for (size_t k = 0; k < op_.operands.size(); ++k) {
      if (!is_of_blocks(size_of(*op_.operands[k]))) return std::nullopt;
      way.operands[k] = placed(*op_.operands[k]);
    }
    for (size_t r = 0; r < op_.results().size(); ++r) {
      if (!is_of_blocks(size_of(*op_.results()[r]))) return std::nullopt;
      way.results[r] = placed(*op_.results()[r]);
    }
    return way;
  }

  // The op is linear in operands that are all added up over the factor.
  bool adds_up(const ClauseParts& clause, const FactorPart& factor) const {
    for (const std::vector<size_t>& group : map_->linear) {
      bool all = true;
      for (const size_t k : group) {
        if (k >= op_.operands.size() || !op_.operands[k] || !clause.operands[k]) continue;
        const FactorPart* part = ir::find_part(*clause.operands[k], factor);
        all &= part && part->mark == '+' && part->size > 1;
      }
      if (all) return true;
    }
    return false;
  }

  // The rank's rows alone, where the op makes each row of results of the same row of operands: what stands after them is nothing.
  std::optional<OpCut> of_rows() const {
    for (const ClauseParts& clause : clauses_)
      for (size_t k = 0; k < operands_.size(); ++k) {
        if (!op_.operands[k] || !clause.operands[k] || operands_[k].kind != Placement::Kind::Rows) continue;
        const auto cut = ir::cut_factor(*clause.operands[k], static_cast<size_t>(operands_[k].dim), 1);
        return cut ? by_rows(*cut->part, operands_[k].blocks) : std::nullopt;
      }
    return std::nullopt;
  }

  std::optional<OpCut> by_rows(const FactorPart& factor, int64_t offsets) const {
    OpCut way = whole();
    const auto rows_of = [&](const ir::Value& value, const std::vector<FactorPart>& parts) -> std::optional<Placement> {
      const FactorPart* part = ir::find_part(parts, factor);
      if (!part || part->mark != ' ' || part->size != factor.size) return std::nullopt;
      const ir::DimCut cut = ir::cut_dim(parts, *part, 1);
      if (cut.blocks != 1 || value.type().dims[cut.dim].size != factor.size) return std::nullopt;
      return Placement::rows(static_cast<int64_t>(cut.dim), offsets);
    };
    for (const ClauseParts& clause : clauses_) {
      bool met = false;
      for (size_t k = 0; k < op_.operands.size(); ++k) {
        if (!op_.operands[k] || !clause.operands[k]) continue;
        const FactorPart* part = ir::find_part(*clause.operands[k], factor);
        if (!part || is_broadcast(*part)) continue;
        met = true;
        if (!(way.operands[k] = rows_of(*op_.operands[k], *clause.operands[k]))) return std::nullopt;
      }
      for (size_t r = 0; met && r < clause.results.size(); ++r) {
        const size_t index = clause.first_result + r;
        const auto rows = rows_of(*op_.results()[index], clause.results[r]);
        if (!rows) return std::nullopt;
        way.results[index] = *rows;
      }
    }
    return way;
  }

  // All summands are of one group in which the op is linear, and the group has no others. Products are left out: to wait there would
  // cost more work.
  std::optional<OpCut> of_summands() const {
    if (!map_ || (!is_light() && !adds_most()) || repeats()) return std::nullopt;
    for (const std::vector<size_t>& group : map_->linear) {
      OpCut way = whole();
      bool all = true, any = false;
      for (const size_t k : group) {
        if (k >= op_.operands.size() || !op_.operands[k]) continue;
        const bool is_summand = operands_[k] == kSum;
        all &= is_summand || are_zeros(*op_.operands[k]);  // zeros on all ranks are a summand too
        any |= is_summand;
        if (is_summand) way.operands[k] = kSum;
      }
      if (!all || !any) continue;
      way.results.assign(op_.results().size(), kSum);
      return way;
    }
    return std::nullopt;
  }

  // An expanded value would be sent as often as it is repeated.
  bool repeats() const {
    return op_.operands.size() == 1 && !op_.results().empty() &&
           op_.result()->type().numel() > op_.operands[0]->type().numel();
  }

  bool is_light() const {
    const ir::OpRow* row = op_.opcode.row();
    return row && (row->cost == ir::CostClass::Free || row->cost == ir::CostClass::Pointwise ||
                   (row->flags & ir::kPicks) != 0);
  }

  // It leaves half at most, so that its result is sent in place of what it adds: the outputs of a token's experts, the gradients
  // of a token's copies.
  bool adds_most() const {
    const ir::OpRow* row = op_.opcode.row();
    if (!row || (row->cost != ir::CostClass::Reduction && !op_.is("aten.index_add"))) return false;
    int64_t most = 0;
    for (size_t k = 0; k < operands_.size(); ++k)
      if (operands_[k] == kSum) most = std::max(most, op_.operands[k]->type().numel());
    return 2 * op_.result()->type().numel() <= most;
  }

  const Op& op_;
  const std::vector<Placement>& operands_;
  const int64_t ranks_;
  const bool cut_summands_;
  const std::vector<ClauseParts>& clauses_;
  const ir::AccessMap* map_;
};

bool is_view(const Op& op) { return ir::has_flag(op, ir::kReshape) || ir::has_flag(op, ir::kPermute); }

}  // namespace

std::vector<OpCut> cuts_of(const Op& op, const std::vector<Placement>& operands, int64_t ranks, bool cut_summands) {
  if (ir::is_collective(op)) return cuts_of_collective(op, operands[0]);
  if (is_view(op)) return cuts_of_view(op, operands[0], ranks);
  return Ways(op, ir::parts_of(op), operands, ranks, cut_summands).all();
}

bool CutsOfOps::Likeness::is_of(const Op& op) const {
  if (opcode != op.opcode || operands.size() != op.operands.size() || results.size() != op.results().size())
    return false;
  for (size_t k = 0; k < operands.size(); ++k) {
    const ir::Value* operand = op.operands[k];
    if (operands[k].has_value() != (operand != nullptr)) return false;
    if (operand && (*operands[k] != operand->type() || zeros[k] != are_zeros(*operand))) return false;
  }
  for (size_t r = 0; r < results.size(); ++r)
    if (results[r] != op.results()[r]->type()) return false;
  return attrs == op.attrs;
}

CutsOfOps::Known& CutsOfOps::known(const Op& op) {
  Known*& known = known_of_[&op];
  if (known) return *known;
  size_t hash = std::hash<std::string_view>()(op.opcode);
  const auto add = [&](const ir::Type& type) {
    for (const ir::Dim& dim : type.dims) hash = hash * 31 + static_cast<size_t>(dim.size);
  };
  for (const ir::Value* operand : op.operands)
    if (operand) add(operand->type());
  for (const auto& result : op.results()) add(result->type());
  std::vector<Known*>& alike = alike_[hash];
  const auto found = std::ranges::find_if(alike, [&](const Known* one) { return one->of.is_of(op); });
  if (found != alike.end()) return *(known = *found);
  Likeness of{.opcode = op.opcode, .attrs = op.attrs, .operands = {}, .zeros = {}, .results = {}};
  for (const ir::Value* operand : op.operands) {
    of.operands.push_back(operand ? std::optional(operand->type()) : std::nullopt);
    of.zeros.push_back(operand && are_zeros(*operand));
  }
  for (const auto& result : op.results()) of.results.push_back(result->type());
  known = &known_.emplace_back(Known{.of = std::move(of), .parts = {}, .answers = {}});
  alike.push_back(known);
  return *known;
}

const std::vector<OpCut>& CutsOfOps::of(const Op& op, const std::vector<Placement>& operands) {
  Known& known = this->known(op);
  for (const Answer& answer : known.answers)
    if (answer.operands == operands) return answer.cuts;
  if (ir::is_collective(op) || is_view(op)) {
    known.answers.push_back({operands, cuts_of(op, operands, ranks_, cut_summands_)});
  } else {
    if (!known.parts) known.parts = ir::parts_of(op);
    known.answers.push_back({operands, Ways(op, *known.parts, operands, ranks_, cut_summands_).all()});
  }
  return known.answers.back().cuts;
}

bool has_rule(const Op& op) { return is_view(op) || ir::is_collective(op) || ir::map_of(op.opcode.row()) != nullptr; }

}  // namespace sfsdp::parallel
