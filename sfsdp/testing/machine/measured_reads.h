// SPDX-License-Identifier: BSD-3-Clause
// What the results of an op are made of, as its runs show it: elements of its operands are changed, one by one and many at once,
// and what changes with them is noted. No access map, class or attribute of the op is asked.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "sfsdp/testing/interp/array.h"

namespace sfsdp::plan::machine {

// Whether a kernel can compute the op block by block, each of `width` elements of its largest tensors, reading a block whole before
// it writes it: an element, or some last dimensions.
struct MeasuredReads {
  bool by_blocks = false;
  int64_t width = 1;
  std::vector<char> over_blocks = {};  // by result: added up over all blocks, complete after the last
};

// Integers as they are, as they may be indexes; floating numbers in (0, 1), where logarithms, roots and quotients are numbers.
std::vector<ir::interp::Array> made_up(std::vector<ir::interp::Array> operands);

using RunOp = std::function<std::vector<ir::interp::Array>(std::vector<ir::interp::Array> operands)>;

// Nothing of one block may change with what is changed in others alone, in results as large as the largest tensor, or with a number
// for each block. An element of an operand as large is read for its own place, for that and another one (then pairs are read), or for
// all of its block. In a smaller operand of no integers each element of a result is made of one element, of all, or of those of a pair. A
// result over blocks is made of elements at its own places, in each part of the largest that is as large as it.
//   like: shapes, dtypes and integers of the operands; their floating numbers are made up, as what is infinite or nan hides changes
MeasuredReads measure_reads(const std::vector<ir::interp::Array>& like, const RunOp& run);

}  // namespace sfsdp::plan::machine
