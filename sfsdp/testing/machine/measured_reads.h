// SPDX-License-Identifier: BSD-3-Clause
// What the results of an op are made of, as its runs show it: each element of each operand is changed, and what changes with it
// is noted. No access map, class or attribute of the op is asked.
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

using RunOp = std::function<std::vector<ir::interp::Array>(std::vector<ir::interp::Array> operands)>;

// Each block of what is as large as the largest tensor, or has a number for each block, may be made of
//   that block of such tensors: an element of its own one, a pair of both, or all elements of the block of all;
//   one element of a smaller operand, all of them, or the two at the pair's places, counted from the last dimension.
// The numbers of a result over blocks that is smaller are made of each block's elements at the same place in it.
MeasuredReads measure_reads(const std::vector<ir::interp::Array>& operands, const RunOp& run);

}  // namespace sfsdp::plan::machine
