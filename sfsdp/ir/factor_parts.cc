// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/factor_parts.h"

#include <algorithm>

#include "sfsdp/ir/opset.h"

namespace sfsdp::ir {
namespace {

using Length = AccessMap::Length;

struct Rows {
  size_t dims = 0;
  int64_t count = 1;
};

Rows rows_of(const AccessMap& map, const std::vector<FactorPart>& parts) {
  Rows rows;
  for (const FactorPart& part : parts)
    if (map.factors[static_cast<size_t>(part.factor)].length == Length::Dots) ++rows.dims, rows.count *= part.size;
  return rows;
}

// All dimensions of ... as one: the outermost of more than one index, or that an axis has left one of.
void merge_rows(const AccessMap& map, const Type& type, std::vector<FactorPart>& parts) {
  const Rows rows = rows_of(map, parts);
  const auto is_row = [&](const FactorPart& part) {
    return map.factors[static_cast<size_t>(part.factor)].length == Length::Dots;
  };
  const auto counts = [&](const FactorPart& part) {
    return is_row(part) && (part.size > 1 || !type.dims[part.dim].split.empty());
  };
  const auto outer = std::ranges::find_if(parts, counts);
  if (outer == parts.end()) return;
  FactorPart merged = *outer;
  merged.index = 0;
  merged.size = rows.count;
  for (const FactorPart& part : parts)
    if (is_row(part) && part.dim >= merged.dim) merged.rows.push_back(part.size);
  std::erase_if(parts, is_row);
  parts.insert(parts.begin(), merged);
}

// The row dimensions of an operand, innermost first.
std::vector<const FactorPart*> row_dims(const AccessMap& map, const std::vector<FactorPart>& parts) {
  std::vector<const FactorPart*> dims;
  for (const FactorPart& part : parts)
    if (map.factors[static_cast<size_t>(part.factor)].length == Length::Dots) dims.push_back(&part);
  std::ranges::sort(dims, {}, [](const FactorPart* part) { return part->index; });
  return dims;
}

// Whether all rows are added up: then operands that count them otherwise are not broadcast.
bool adds_rows(const AccessMap& map, const ClauseParts& clause) {
  return std::ranges::none_of(clause.results, [&](const auto& parts) { return rows_of(map, parts).dims > 0; });
}

// Whether one of two operands is not the other one with dimensions of 1 in front: then they count the same rows otherwise, as
// [48, n] beside [4, 12, k] does. Cut by other axes, dimensions of one size are not the same: a rank's one token is [1/ep, n] beside
// [1/ep, 1, k].
bool count_otherwise(const AccessMap& map, const Op& op, const ClauseParts& clause, size_t a, size_t b) {
  const auto left = row_dims(map, *clause.operands[a]), right = row_dims(map, *clause.operands[b]);
  const auto split = [&](size_t k, const FactorPart& part) -> const std::vector<std::string>& {
    return op.operands[k]->type().dims[part.dim].split;
  };
  if (left.empty() || right.empty() || left.size() == right.size()) return false;
  if (rows_of(map, *clause.operands[a]).count != rows_of(map, *clause.operands[b]).count) return false;
  for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
    if (left[i]->size != right[i]->size) return true;
    const bool counts = left[i]->size > 1 || adds_rows(map, clause);
    if (counts && split(a, *left[i]) != split(b, *right[i])) return true;
  }
  return false;
}

void merge_rows(const AccessMap& map, const Op& op, ClauseParts& clause) {
  std::optional<size_t> first;
  bool otherwise = false;
  for (size_t k = 0; k < clause.operands.size(); ++k) {
    if (!clause.operands[k] || rows_of(map, *clause.operands[k]).dims == 0) continue;
    otherwise |= first && count_otherwise(map, op, clause, *first, k);
    first = first.value_or(k);
  }
  if (!otherwise) return;
  const int64_t rows = rows_of(map, *clause.operands[*first]).count;
  for (const auto& parts : clause.results)
    if (const Rows made = rows_of(map, parts); made.dims > 0 && made.count != rows)
      return;  // [12] and [12, 1] are broadcast
  for (size_t k = 0; k < clause.operands.size(); ++k)
    if (clause.operands[k]) merge_rows(map, op.operands[k]->type(), *clause.operands[k]);
  for (size_t r = 0; r < clause.results.size(); ++r)
    merge_rows(map, op.results()[clause.first_result + r]->type(), clause.results[r]);
}

// Where it is causal or within documents, attention compares places in the sequence, of which each part would begin at 0; and its
// kernels take one width of queries, keys and values. What is held whole so is marked.
void hold_attention(const Op& op, ClauseParts& clause) {
  const OpRow* row = op.opcode.row();
  if (row->cost != CostClass::Attention) return;
  const size_t q = row->name.ends_with("_backward") ? 1 : 0;
  std::vector<FactorPart> held;
  const auto hold = [&](size_t operand, size_t dim) {
    if (operand >= clause.operands.size() || !clause.operands[operand]) return;
    for (const FactorPart& part : *clause.operands[operand])
      if (part.dim == dim) held.push_back(part);
  };
  hold(q + 2, 3);
  if (op.attr_or("is_causal", false) || op.attr_or("documents", false)) hold(q, 2), hold(q + 1, 2);
  for (auto& parts : clause.operands) {
    if (!parts) continue;
    for (FactorPart& part : *parts)
      if (std::ranges::any_of(held, [&](const FactorPart& h) { return h.is(part); })) part.mark = '!';
  }
}

}  // namespace

const FactorPart* find_part(const std::vector<FactorPart>& parts, const FactorPart& factor) {
  const auto found = std::ranges::find_if(parts, [&](const FactorPart& part) { return part.is(factor); });
  return found == parts.end() ? nullptr : &*found;
}

int64_t permuted_dim(const Op& op, int64_t dim) {
  const auto rank = std::ssize(op.operands[0]->type().dims);
  const auto from_front = [&](int64_t d) { return d < 0 ? d + rank : d; };
  if (const auto* dims = op.find_attr<std::vector<int64_t>>("dims"))
    for (int64_t i = 0; i < std::ssize(*dims); ++i)
      if (from_front((*dims)[static_cast<size_t>(i)]) == dim) return i;
  const int64_t a = from_front(op.attr_or<int64_t>("dim0", 0)), b = from_front(op.attr_or<int64_t>("dim1", 1));
  return dim == a ? b : dim == b ? a : dim;
}

std::optional<FactorCut> cut_factor(const std::vector<FactorPart>& parts, size_t dim, int64_t blocks) {
  int64_t before = 1;  // ranges of the dimension, or of what several are, that the factors before the part make
  for (const FactorPart& part : parts) {
    const bool spans = dim >= part.dim && dim < part.dim + std::max<size_t>(part.rows.size(), 1);
    if (!spans) continue;
    int64_t ranges = blocks;
    for (size_t i = 0; i < part.rows.size() && part.dim + i < dim; ++i) ranges *= part.rows[i];
    if (before == 0 || ranges < before || ranges % before != 0) return std::nullopt;
    ranges /= before;
    if (part.size > ranges) return part.size % ranges == 0 ? std::optional(FactorCut{&part, ranges}) : std::nullopt;
    before *= part.size;
  }
  return std::nullopt;
}

DimCut cut_dim(const std::vector<FactorPart>& parts, const FactorPart& part, int64_t blocks) {
  DimCut cut{part.dim, blocks};
  for (size_t i = 0; i + 1 < part.rows.size() && cut.blocks > 1 && part.rows[i] > 0 && cut.blocks % part.rows[i] == 0;
       ++i) {
    cut.blocks /= part.rows[i];
    ++cut.dim;
  }
  for (const FactorPart& other : parts)
    if (&other < &part && other.dim == part.dim) cut.blocks *= other.size;
  return cut;
}

void refine(const AccessMap& map, const Op& op, ClauseParts& clause) {
  merge_rows(map, op, clause);
  hold_attention(op, clause);
}

}  // namespace sfsdp::ir
