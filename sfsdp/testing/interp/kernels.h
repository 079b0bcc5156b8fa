// SPDX-License-Identifier: BSD-3-Clause
// What each opcode computes on one rank, written to be obviously right. Collectives are in collectives.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/testing/interp/array.h"

namespace sfsdp::ir::interp {

// What the host writes for a step and a micro-batch (plan::kHostValues).
struct HostNumbers {
  double lr = 0.125;
  int64_t step = 1;                    // the first is 1
  uint64_t seed = 0x9e3779b97f4a7c15;  // no double holds it
  int64_t micro_batch = 0;
};

struct KernelContext {
  const Op& op;
  std::span<const Array* const> operands;  // nullptr: absent
  HostNumbers host;
  int64_t axis_rank;       // over attribute `axis`, 0 if there is none
  int64_t axis_ranks = 1;  // how many there are
  const Array& in(size_t index = 0) const { return *operands[index]; }
};

// An index that a tensor holds, as one into `count` elements.  throws: UserError naming the op where it is none
size_t index_in(const KernelContext& c, double index, int64_t count);

// Results in exact arithmetic (double); the interpreter rounds them to the dtypes of the op's results.
using Kernel = std::vector<Array> (*)(const KernelContext&);

Kernel find_kernel(std::string_view opcode);  // nullptr: none

}  // namespace sfsdp::ir::interp
