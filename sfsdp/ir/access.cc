// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/access.h"

#include <algorithm>
#include <array>
#include <optional>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/ir/access_map.h"

namespace sfsdp::ir {
namespace {

using Length = AccessMap::Length;

constexpr size_t kMostParts = 12, kMostFactors = 16;

// A factor's part of one dimension of a value. Factors that stand for several dimensions count them from the right.
struct Part {
  int16_t factor = 0;
  int16_t index = 0;
  char mark = ' ';
  uint8_t dim = 0;
  bool shared = false;  // with other factors, in one dimension
  int64_t size = 1;
  bool is(const Part& other) const { return factor == other.factor && index == other.index; }
};

// A value as a pattern sees it.
struct Seen {
  std::array<Part, kMostParts> parts;
  size_t count = 0;
  std::span<const Part> all() const { return {parts.data(), count}; }
  bool add(const Part& part) {
    if (count == kMostParts) return false;
    parts[count++] = part;
    return true;
  }
};

// Resolves patterns of one clause against an op: first what dimensions are, then the sizes of those that several factors share.
class Resolver {
 public:
  Resolver(const AccessMap& map, const Op& op) : map_(map), op_(op) {}

  // Whether `value` fits. Values are given in order, as the first ones say how long ... is; what is shared is left open.
  bool see(const AccessMap::Pattern& pattern, const Value& value, Seen& seen) {
    shape_ = &value.type();
    const auto rank = static_cast<int>(shape_->dims.size());
    if (const int listed = listed_factor(pattern); listed >= 0) return see_listed(pattern, listed, rank, seen);
    int fixed = 0;
    bool dots = false, any = false, ones = false;
    for (const AccessMap::Dimension& dim : pattern.dims) {
      const Length length = length_of(dim);
      dots |= is_dots(dim);
      ones |= is_ones(dim);
      any |= !is_ones(dim) && length == Length::Any;
      if (!is_ones(dim) && length != Length::Dots && length != Length::Any) fixed += count_of(dim);
    }
    int open = rank - fixed;  // dimensions of what has no length of its own
    if (open > 0 && !dots && !any && !ones) return false;
    const int of_dots = !dots                         ? 0
                        : ones && (any || dots_ >= 0) ? std::clamp(open, 0, std::max(dots_, 0))
                                                      : std::max(open, 0);
    dots_ = std::max(dots_, of_dots);
    open -= of_dots;
    int missing = std::max(0, -open), at = 0;  // on the left: broadcast
    for (const AccessMap::Dimension& dim : pattern.dims) {
      int length = is_dots(dim)                                    ? of_dots
                   : is_ones(dim) || length_of(dim) == Length::Any ? std::max(open, 0)
                                                                   : count_of(dim);
      const int lost = std::min(missing, is_dots(dim) ? 0 : length);
      missing -= lost;
      for (int i = lost; i < length; ++i, ++at)
        if (!add(dim, length - 1 - i, at, seen)) return false;
    }
    return at == rank;
  }

  // The sizes of what shares a dimension, as far as other dimensions or the map say them.
  bool share(const AccessMap::Pattern& pattern, const Value& value, Seen& seen) {
    for (const AccessMap::Dimension& dim : pattern.dims)
      if (dim.size() > 1 && !share(dim, value, seen)) return false;
    return true;
  }

 private:
  static bool is_ones(const AccessMap::Dimension& dim) { return dim[0].factor == AccessMap::kOnes; }
  const AccessMap::Factor& factor_of(const AccessMap::Dimension& dim) const {
    return map_.factors[static_cast<size_t>(dim[0].factor)];
  }
  Length length_of(const AccessMap::Dimension& dim) const {
    return is_ones(dim) ? Length::Any : dim.size() > 1 ? Length::One : factor_of(dim).length;
  }
  bool is_dots(const AccessMap::Dimension& dim) const { return length_of(dim) == Length::Dots; }

  int count_of(const AccessMap::Dimension& dim) const {
    if (length_of(dim) == Length::One) return 1;
    const std::string& name = factor_of(dim).attribute;
    // "d" of d[dim], without ...: the one dimension that is listed.
    if (const auto* count = op_.find_attr<int64_t>(name))
      return length_of(dim) == Length::Listed ? 1 : static_cast<int>(*count);
    const auto* list = op_.find_attr<std::vector<int64_t>>(name);
    return list ? static_cast<int>(list->size()) : 0;
  }

  // The factor of `d[dim]` beside ...; -1: there is none.
  int listed_factor(const AccessMap::Pattern& pattern) const {
    int listed = -1;
    bool dots = false;
    for (const AccessMap::Dimension& dim : pattern.dims) {
      dots |= is_dots(dim);
      if (is_ones(dim) ? !pattern.ones.attribute.empty() : length_of(dim) == Length::Listed)
        listed = is_ones(dim) ? static_cast<int>(map_.factors.size()) : dim[0].factor;
    }
    return dots ? listed : -1;
  }

  // By bit, the dimensions of a value of this rank that the attribute lists; nullopt: none, so all.
  std::optional<uint32_t> listed(const AccessMap::Factor& factor, int rank) const {
    uint32_t bits = 0;
    const auto add = [&](int64_t dim) {
      if (dim >= -rank && dim < rank) bits |= 1U << static_cast<uint32_t>(dim < 0 ? dim + rank : dim);
    };
    const auto* one = op_.find_attr<int64_t>(factor.attribute);
    const auto* all = op_.find_attr<std::vector<int64_t>>(factor.attribute);
    if (one || (!all && factor.fallback)) {
      add(one ? *one : *factor.fallback);
      return bits;
    }
    if (!all || all->empty()) return std::nullopt;
    for (const int64_t dim : *all) add(dim);
    return bits;
  }

  // "... d[dim]": dimensions that an attribute lists, the others in order.
  bool see_listed(const AccessMap::Pattern& pattern, int factor, int rank, Seen& seen) {
    const bool ones = factor == static_cast<int>(map_.factors.size());
    const AccessMap::Dimension* dots = nullptr;
    const AccessMap::Dimension* chosen = nullptr;
    for (const AccessMap::Dimension& dim : pattern.dims) (is_dots(dim) ? dots : chosen) = &dim;
    if (rank > 31 || pattern.dims.size() != 2) return false;
    const auto bits = listed(ones ? pattern.ones : map_.factors[static_cast<size_t>(factor)], rank);
    const bool dropped = ones && rank != listed_rank_;  // keepdim=false
    if (!ones) listed_rank_ = std::max(listed_rank_, rank);
    int left = 0, right = 0;  // dimensions of ... and of those listed
    for (int d = 0; d < rank; ++d)
      ++(bits && !dropped && ((*bits >> static_cast<uint32_t>(d)) & 1U) != 0 ? right : left);
    dots_ = std::max(dots_, left);
    for (int d = 0; d < rank; ++d) {
      const bool is_listed = bits && !dropped && ((*bits >> static_cast<uint32_t>(d)) & 1U) != 0;
      if (!bits && ones && shape_->dims[static_cast<size_t>(d)].size == 1) continue;
      AccessMap::Dimension dim = is_listed ? *chosen : *dots;
      if (!bits && !ones) dim[0].mark = (*chosen)[0].mark;
      if (!add(dim, is_listed ? --right : --left, d, seen)) return false;
    }
    return true;
  }

  bool add(const AccessMap::Dimension& dim, int index, int at, Seen& seen) {
    const int64_t size = shape_->dims[static_cast<size_t>(at)].size;
    if (is_ones(dim)) return size == 1;
    for (const AccessMap::Use& use : dim) {
      const Part part{.factor = static_cast<int16_t>(use.factor),
                      .index = static_cast<int16_t>(index),
                      .mark = use.mark,
                      .dim = static_cast<uint8_t>(at),
                      .shared = dim.size() > 1,
                      .size = dim.size() > 1 ? 0 : size};
      if (!seen.add(part)) return false;
    }
    if (const auto factor = static_cast<size_t>(dim[0].factor); dim.size() == 1 && factor < kMostFactors)
      sizes_[factor] = std::max(sizes_[factor], size);
    return true;
  }

  bool share(const AccessMap::Dimension& dim, const Value& value, Seen& seen) {
    const auto begin = std::ranges::find_if(seen.parts.begin(), seen.parts.begin() + static_cast<ptrdiff_t>(seen.count),
                                            [&](const Part& p) { return p.shared && p.factor == dim[0].factor; });
    if (begin == seen.parts.begin() + static_cast<ptrdiff_t>(seen.count)) return true;  // broadcast
    const int64_t whole = value.type().dims[begin->dim].size;
    int64_t known = 1;
    size_t unknown = dim.size();
    for (size_t i = 0; i < dim.size(); ++i) {
      const auto factor = static_cast<size_t>(dim[i].factor);
      int64_t& size = sizes_[factor];
      if (map_.factors[factor].size > 0) size = map_.factors[factor].size;
      if (size == 0) {
        if (unknown != dim.size()) return false;
        unknown = i;
      } else {
        known *= size;
      }
    }
    if (unknown != dim.size()) {
      if (known == 0 || whole % known != 0) return false;
      sizes_[static_cast<size_t>(dim[unknown].factor)] = whole / known;
      known = whole;
    }
    const int64_t outer = sizes_[static_cast<size_t>(dim[0].factor)];
    if (known != whole && whole != 1 && whole * outer != known) return false;
    for (size_t i = 0; i < dim.size(); ++i) {
      const bool broadcast = known != whole && (whole == 1 || i == 0);
      (begin + static_cast<ptrdiff_t>(i))->size = broadcast ? 1 : sizes_[static_cast<size_t>(dim[i].factor)];
    }
    return true;
  }

  const AccessMap& map_;
  const Op& op_;
  const Type* shape_ = nullptr;
  std::array<int64_t, kMostFactors> sizes_ = {};
  int dots_ = -1;        // dimensions of ..., so far
  int listed_rank_ = 0;  // of the operand whose dimensions an attribute lists
};

// ---- one operand and one result --------------------------------------------------------------------------------------

const Part* find(const Seen& seen, const Part& part) {
  const auto found = std::ranges::find_if(seen.all(), [&](const Part& p) { return p.is(part); });
  return found == seen.all().end() ? nullptr : &*found;
}

// Whether the unmarked parts of the operand, or all, stand in the result in the same order, as large or of size 1.
bool in_order(const Seen& operand, const Seen& result, bool marked_too) {
  size_t at = 0;
  for (const Part& part : operand.all()) {
    if ((part.mark != ' ' && !marked_too) || (part.mark == ' ' && part.size == 1)) continue;
    while (at < result.count && !result.parts[at].is(part)) ++at;
    if (at == result.count || result.parts[at].size != part.size) return false;
  }
  return true;
}

// What marks say of an operand: rows of the last dimensions, pairs of the last one, all rows.
Access read_marked(const AccessMap& map, const Seen& operand, const Seen& result, const Type& type) {
  bool over_dots = false, pairs = true, kept = false;
  size_t marked = 0, row_dims = 0;
  int64_t width = 1, row = 1;  // of what is marked; of all but ...
  for (const Part& part : operand.all()) {
    const AccessMap::Factor& factor = map.factors[static_cast<size_t>(part.factor)];
    if (factor.length != Length::Dots) row *= part.size, ++row_dims;
    kept |= part.mark == ' ' && part.size > 1;
    if (part.mark == ' ') continue;
    over_dots |= factor.length == Length::Dots;
    pairs &= part.shared && factor.size > 0 && part.dim + 1U == type.dims.size();
    width *= part.size;
    ++marked;
  }
  if (over_dots) return {Reads::AllRows, row, row_dims};
  if (pairs && in_order(operand, result, true)) return {Reads::Group, type.dims.back().size};
  const auto is_new = [&](const Part& part) { return part.size > 1 && !find(operand, part); };
  if (std::ranges::any_of(result.all(), is_new)) return {kept ? Reads::Others : Reads::Whole};
  const auto rows = operand.all().subspan(operand.count - marked);
  const bool last = std::ranges::all_of(rows, [](const Part& part) { return part.mark != ' ' && !part.shared; });
  if (!last || !in_order(operand, result, false)) return {};
  const bool whole = std::ranges::all_of(
      result.all(), [&](const Part& part) { return part.size == 1 || find(operand, part)->size == part.size; });
  return whole ? Access{Reads::Row, width, marked} : Access{};
}

Access read(const AccessMap& map, const Seen& operand, const Seen& result, const Type& type) {
  bool marked = false;
  for (const Part& part : operand.all()) {
    if (part.mark == '~' || part.mark == '@') return {};
    marked |= part.mark != ' ';
  }
  if (marked) return read_marked(map, operand, result, type);
  return {in_order(operand, result, false) ? Reads::Element : Reads::Others};
}

// ---- an op -----------------------------------------------------------------------------------------------------------

bool is_tensor(const Value* value) { return value && value->type().kind != Type::Kind::Token; }

// One clause against the op: what its operands and results are. An operand that is absent, or not read, has no pattern.
struct ClauseOfOp {
  std::vector<const AccessMap::Pattern*> operands;
  std::vector<Seen> seen_operands;
  size_t first_result = 0;
  std::vector<const AccessMap::Pattern*> results;
  std::vector<Seen> seen_results;
  bool pairs = false;  // a list of operands and one of results, i by i
  size_t list_begin = 0;
};

std::vector<const AccessMap::Pattern*> spread(const std::vector<AccessMap::Pattern>& patterns, size_t count) {
  std::vector<const AccessMap::Pattern*> of(count, nullptr);
  const size_t others =
      patterns.size() - static_cast<size_t>(std::ranges::count(patterns, true, &AccessMap::Pattern::list));
  size_t at = 0;
  for (const AccessMap::Pattern& pattern : patterns) {
    const size_t times = pattern.list ? (count > others ? count - others : 0) : 1;
    for (size_t i = 0; i < times && at < count; ++i, ++at) of[at] = &pattern;
  }
  return of;
}

bool resolve(const AccessMap& map, const AccessMap::Clause& clause, const Op& op, ClauseOfOp& out) {
  out.operands = spread(clause.operands, op.operands.size());
  const bool listed = std::ranges::any_of(clause.results, &AccessMap::Pattern::list);
  const size_t left = op.results().size() - std::min(out.first_result, op.results().size());
  out.results = spread(clause.results, listed ? left : std::min(left, clause.results.size()));
  out.pairs = listed && std::ranges::any_of(clause.operands, &AccessMap::Pattern::list);
  out.list_begin = 0;
  while (out.pairs && out.list_begin < out.operands.size() && !out.operands[out.list_begin]->list) ++out.list_begin;
  out.seen_operands.assign(out.operands.size(), {});
  out.seen_results.assign(out.results.size(), {});
  Resolver resolver(map, op);
  const auto each = [&](auto f) {
    for (size_t i = 0; i < out.operands.size(); ++i)
      if (out.operands[i] && out.operands[i]->read && is_tensor(op.operands[i]))
        if (!f(*out.operands[i], *op.operands[i], out.seen_operands[i])) return false;
    for (size_t i = 0; i < out.results.size(); ++i)
      if (const Value* value = op.results()[out.first_result + i].get(); is_tensor(value))
        if (!f(*out.results[i], *value, out.seen_results[i])) return false;
    return true;
  };
  return each(
             [&](const auto& pattern, const Value& value, Seen& seen) { return resolver.see(pattern, value, seen); }) &&
         each(
             [&](const auto& pattern, const Value& value, Seen& seen) { return resolver.share(pattern, value, seen); });
}

// Whether an unmarked dimension of an operand is of another size than the result's.
bool broadcasts(const ClauseOfOp& clause) {
  for (const Seen& operand : clause.seen_operands)
    for (const Part& part : operand.all())
      for (const Seen& result : clause.seen_results)
        if (const Part* same = find(result, part); same && part.mark == ' ' && same->size != part.size) return true;
  return false;
}

// The clauses of the first map that fits; empty: none does.
std::vector<ClauseOfOp> resolve(const Op& op, const AccessMap* map) {
  if (!map) return {};
  for (const AccessMap::Choice& choice : map->choices) {
    if (!choice.flag.empty()) {
      const auto* flag = op.find_attr<bool>(choice.flag);
      if (!flag || !*flag) continue;
    }
    std::vector<ClauseOfOp> clauses;
    size_t next = 0;
    bool fits = true;
    for (const AccessMap::Clause& clause : choice.clauses) {
      ClauseOfOp& of = clauses.emplace_back();
      of.first_result = next;
      fits = fits && resolve(*map, clause, op, of);
      next += of.results.size();
    }
    if (map->exact) fits = fits && std::ranges::none_of(clauses, broadcasts);
    if (fits && next == op.results().size()) return clauses;
  }
  return {};
}

bool is_read(const ClauseOfOp& clause, const Op& op, size_t operand, size_t result) {
  const AccessMap::Pattern* pattern = clause.operands[operand];
  if (!pattern || !pattern->read || !op.operands[operand]) return false;
  return !clause.pairs || !pattern->list || operand - clause.list_begin == result - clause.first_result;
}

}  // namespace

// Whether each element is made of those at its place, at first sight: most ops of a step, of which resolving takes most time.
static bool is_plainly_elementwise(const Op& op, const AccessMap& map) {
  if (!map.elementwise || op.results().size() != 1 || !is_tensor(op.result())) return false;
  if (op.operands.size() != map.choices[0].clauses[0].operands.size()) return false;
  return std::ranges::all_of(op.operands, [&](const Value* value) {
    if (!is_tensor(value)) return false;
    const std::vector<Dim>& dims = value->type().dims;
    return dims.empty() || std::ranges::equal(dims, op.result()->type().dims, {}, &Dim::size, &Dim::size);
  });
}

OpAccess::OpAccess(const Op& op) : operands_(op.operands.size()), after_all_rows_(op.results().size(), true) {
  reads_.assign(op.operands.size() * op.results().size(), {});
  const AccessMap* map = map_of(op.opcode.row());
  if (map && is_plainly_elementwise(op, *map)) {
    reads_.assign(reads_.size(), {Reads::Element});
    after_all_rows_.assign(after_all_rows_.size(), false);
    by_place_ = true;
    return;
  }
  const std::vector<ClauseOfOp> clauses = resolve(op, map);
  for (const ClauseOfOp& clause : clauses)
    for (size_t i = 0; i < clause.results.size(); ++i) {
      const size_t r = clause.first_result + i;
      const bool made = is_tensor(op.results()[r].get());
      for (size_t k = 0; k < operands_; ++k) {
        Access& access = reads_[r * operands_ + k];
        access = !made || !is_read(clause, op, k, r)
                     ? Access{Reads::Nothing}
                     : read(*map, clause.seen_operands[k], clause.seen_results[i], op.operands[k]->type());
      }
    }
  if (!clauses.empty()) summarise(op);
}

void OpAccess::summarise(const Op& op) {
  by_place_ = true;
  for (size_t r = 0; r < op.results().size(); ++r) {
    after_all_rows_[r] = false;
    for (size_t k = 0; k < operands_; ++k) {
      const Access access = reads(k, r);
      if (access.reads == Reads::AllRows || access.reads == Reads::Others) after_all_rows_[r] = true;
      if (access.reads == Reads::Others) by_place_ = false;
      if (access.reads == Reads::Group) {
        if (group_ != 0 && group_ != access.width) by_place_ = false;
        group_ = access.width;
      }
      if (access.reads != Reads::Row && (access.reads != Reads::AllRows || access.width <= 1)) continue;
      const int64_t numel = op.operands[k]->type().numel();
      if (rows_.width != 0 && (rows_.width != access.width || rows_.numel != numel)) by_place_ = false;
      rows_ = {.width = access.width, .numel = numel, .dims = access.dims};
    }
  }
  // Sums over all rows beside what is made row by row; alone they are another kernel.
  const bool over_all = std::ranges::any_of(reads_, [](const Access& a) { return a.reads == Reads::AllRows; });
  if (over_all && rows_.width == 0) by_place_ = false;
  if (!by_place_) rows_ = {}, group_ = 0;
}

const OpAccess& Accesses::of(const Op& op) {
  std::optional<OpAccess>& known = known_[&op];
  if (!known) known.emplace(op);
  return *known;
}

Access OpAccess::reads(size_t operand) const {
  Access most{Reads::Nothing};
  for (size_t r = 0; r < after_all_rows_.size(); ++r)
    if (const Access access = reads(operand, r); access.reads > most.reads) most = access;
  return most;
}

namespace {

struct Pair {
  bool read = false;
  Seen operand, result;
};

// nullopt: no map fits.
std::optional<Pair> pair_of(const Op& op, const AccessMap& map, size_t operand, size_t result) {
  for (const ClauseOfOp& clause : resolve(op, &map)) {
    if (result < clause.first_result || result >= clause.first_result + clause.results.size()) continue;
    return Pair{is_read(clause, op, operand, result), clause.seen_operands[operand],
                clause.seen_results[result - clause.first_result]};
  }
  return std::nullopt;
}

// The index of a factor in its dimension: what stands inside it is divided off.
int64_t place_of(const Seen& seen, const Part& part, std::span<const int64_t> at) {
  int64_t inner = 1;
  for (const Part& p : seen.all())
    if (p.dim == part.dim && &p > &part) inner *= std::max<int64_t>(p.size, 1);
  return at[part.dim] / inner % std::max<int64_t>(part.size, 1);
}

}  // namespace

std::vector<std::vector<FactorUse>> factors_of(const Op& op, const AccessMap& map) {
  std::vector<std::vector<FactorUse>> all(op.results().size() * op.operands.size());
  for (const ClauseOfOp& clause : resolve(op, &map))
    for (size_t r = 0; r < clause.results.size(); ++r)
      for (size_t k = 0; k < op.operands.size(); ++k) {
        const size_t result = clause.first_result + r;
        if (!op.operands[k] || !is_read(clause, op, k, result)) continue;
        for (const Part& part : clause.seen_operands[k].all()) {
          const Part* same = find(clause.seen_results[r], part);
          all[result * op.operands.size() + k].push_back({.factor = map.factors[static_cast<size_t>(part.factor)].name,
                                                          .mark = part.mark,
                                                          .size = part.size,
                                                          .in_result = same && same->size > 1});
        }
      }
  return all;
}

bool may_reach(const Op& op, const AccessMap& map, size_t operand, std::span<const int64_t> from, size_t result,
               std::span<const int64_t> to, int unmarked) {
  const auto pair = pair_of(op, map, operand, result);
  if (!pair) return true;
  if (!pair->read) return false;
  for (size_t i = 0; i < pair->operand.count; ++i) {
    const Part& part = pair->operand.parts[i];
    const Part* same = find(pair->result, part);
    if ((part.mark != ' ' && static_cast<int>(i) != unmarked) || part.size == 1 || !same) continue;
    if (place_of(pair->operand, part, from) != place_of(pair->result, *same, to)) return false;
  }
  return true;
}

namespace {

std::vector<FactorPart> plain(const Seen& seen) {
  std::vector<FactorPart> parts;
  for (const Part& part : seen.all())
    parts.push_back(
        {.factor = part.factor, .index = part.index, .mark = part.mark, .dim = part.dim, .size = part.size});
  return parts;
}

}  // namespace

std::vector<ClauseParts> parts_of(const Op& op) {
  if (op.attr_or<int64_t>("groups", 1) != 1) return {};  // of a convolution, whose channels then are not one factor
  std::vector<ClauseParts> all;
  const AccessMap* map = map_of(op.opcode.row());
  for (const ClauseOfOp& clause : resolve(op, map)) {
    if (clause.pairs) return {};
    ClauseParts& parts = all.emplace_back();
    parts.first_result = clause.first_result;
    for (size_t k = 0; k < op.operands.size(); ++k) {
      const bool read = clause.operands[k] && clause.operands[k]->read && is_tensor(op.operands[k]);
      parts.operands.push_back(read ? std::optional(plain(clause.seen_operands[k])) : std::nullopt);
    }
    for (const Seen& seen : clause.seen_results) parts.results.push_back(plain(seen));
    refine(*map, op, parts);
  }
  return all;
}

std::string check_access_text(std::string_view text) {
  try {
    parse_access_map(text);
  } catch (const InternalError& error) {
    return error.what();
  }
  return "";
}

}  // namespace sfsdp::ir
