// SPDX-License-Identifier: BSD-3-Clause
// What the kernels of a step ask LibTorch's allocator for: memory that is not the plan's.
#pragma once

#include <cstdint>
#include <iosfwd>

#include "sfsdp/train/job.h"

namespace sfsdp::tools {

// Runs two steps of one rank alone on ordinary numbers, as large as on `world` of them; other ranks give it zeros. Writes what kernels
// ask for in the second one: a line for each kind of kernel, by the ops that it computes.
void print_allocations(const train::CompiledJob& job, int64_t world, std::ostream& out);

}  // namespace sfsdp::tools
