// SPDX-License-Identifier: BSD-3-Clause
// An op's access map resolved against its operands, as the placement of values on an axis needs it (parts_of in access.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "sfsdp/ir/access_map.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::ir {

// What the placement of values on an axis follows from: a factor's part of one dimension, those of one dimension outer first. Where
// operands count the same rows (...) by other dimensions, these are one part, at the outermost.
struct FactorPart {
  int factor = 0;  // of the map
  int index = 0;   // which of its dimensions, where it stands for several
  char mark = ' ';
  size_t dim = 0;
  int64_t size = 1;
  std::vector<int64_t> rows = {};  // of a part that several dimensions are, `dim` and those after it: their sizes
  bool is(const FactorPart& other) const { return factor == other.factor && index == other.index; }
};
// A clause, resolved against an op: nullopt where an operand is not read, or absent.
struct ClauseParts {
  size_t first_result = 0;
  std::vector<std::optional<std::vector<FactorPart>>> operands;
  std::vector<std::vector<FactorPart>> results;
};
// The part of the factor; nullptr: there is none.
const FactorPart* find_part(const std::vector<FactorPart>& parts, const FactorPart& factor);
// Where a permutation (kPermute) puts a dimension of its operand.
int64_t permuted_dim(const Op& op, int64_t dim);

// Which factor of an operand or result a cut of dimension `dim` in `blocks` ranges cuts, and in how many ranges of the factor.
struct FactorCut {
  const FactorPart* part = nullptr;
  int64_t blocks = 1;
};
// parts: of one operand or result, which the answer points into. nullopt: none; the ranges end within one.
std::optional<FactorCut> cut_factor(const std::vector<FactorPart>& parts, size_t dim, int64_t blocks);

// The inverse: the dimension, and its ranges, that a cut of one of the parts in `blocks` ranges of the factor cuts.
struct DimCut {
  size_t dim = 0;
  int64_t blocks = 1;
};
DimCut cut_dim(const std::vector<FactorPart>& parts, const FactorPart& part, int64_t blocks);

// What the map's text cannot say: rows counted by other dimensions become one part, and what attention compares is marked as read
// whole.
void refine(const AccessMap& map, const Op& op, ClauseParts& clause);

}  // namespace sfsdp::ir
