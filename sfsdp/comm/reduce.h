// SPDX-License-Identifier: BSD-3-Clause
// Elementwise sums, maxima and minima of the ranks' parts, always in rank order, so every backend has the same bits.
#pragma once

#include <cstddef>
#include <span>

#include "sfsdp/comm/communicator.h"
#include "sfsdp/ir/type.h"

namespace sfsdp::comm {

// out[i] = ((parts[0][i] op parts[1][i]) op parts[2][i]) ...
//   dtype:  f64, f32, bf16, f16, i64 or i32. bf16 and f16 accumulate in f32 and round once, to nearest even;
//           integers wrap around; the maximum or minimum with a nan is nan.
//           One part alone is copied as it is.
//   parts:  at least one, all of out's size, no alignment asked for; out may be one of them, but not overlap otherwise
//   throws: UserError for another dtype
void reduce(std::span<const std::span<const std::byte>> parts, std::span<std::byte> out, ir::DType dtype, ReduceOp op);

// Throws what reduce would throw, before any rank waits for this one.
void check_reducible(size_t bytes, ir::DType dtype);

}  // namespace sfsdp::comm
