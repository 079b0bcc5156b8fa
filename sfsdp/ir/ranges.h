// SPDX-License-Identifier: BSD-3-Clause
// Ops that take ranges out of one dimension, or put values side by side in one: which ranges.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/mesh/chunk.h"

namespace sfsdp::ir {

struct Ranges {
  size_t dim = 0;  // of operands and results alike
  bool joins =
      false;  // the result has the operands at these ranges, and zeros elsewhere; else results are these of the operand
  std::vector<Chunk> parts = {};  // by operand where they are joined, by result where they are taken
};

// nullopt: the op is none of them (kTakesRanges, kJoinsRanges), or takes elements that do not lie side by side.
std::optional<Ranges> ranges_of(const Op& op);

// Makes the attributes that say ranges those of a rank's part, where the dimension that they are of is smaller in the op's result than in
// `whole`, its type before: each range has as much less. Other ops stay as they are.
void shrink_ranges(Op& op, const Type& whole);

}  // namespace sfsdp::ir
