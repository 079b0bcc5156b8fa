// SPDX-License-Identifier: BSD-3-Clause
// Reductions of gradients by buckets that are larger than the units of gathers: DeepSpeed's stage 3.
#pragma once

#include <cstdint>

#include "sfsdp/cost/machine.h"
#include "sfsdp/sim/program.h"

namespace sfsdp::sim {

// Reductions of the same communicator and part, one after the other, run as one: the last of them has the bytes of all, the others are over
// at once. A bucket ends before the reduction with which it would have more elements than it holds; one alone may have more.
//   elements: of a bucket, at least 1
void merge_reductions(RankProgram& program, int64_t elements, const cost::Machine& machine);

}  // namespace sfsdp::sim
