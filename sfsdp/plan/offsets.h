// SPDX-License-Identifier: BSD-3-Clause
// Addresses for buffers whose lifetimes are known (dynamic storage allocation, NP-hard).
//
// Largest first at the lowest free address leaves gaps where buffers of one period of the step overlap those of the
// next. Instead the arena grows as a skyline over time: the lowest stretch of it takes the best of the buffers that live
// within that stretch alone; where none does, the stretch is lost up to its lower neighbour. What is best differs from
// step to step, so several orders are tried and the smallest arena is taken. Where lifetimes nest, the order by
// lifetime loses nothing: a buffer is placed after all that outlive it, so each lies right on top of them.
//
// Where that stays above the live bytes, largest first is tried after all, with what ends up on top moved to the front and
// all placed again. It closes what large buffers leave that overlap in time like tiles: those which are sent while the next
// unit's are being made.
//
// Source: Sekiyama, Imamichi, Imai, Raymond, "Profile-guided memory optimization for deep neural networks",
// arXiv:1804.10001; there the order is by lifetime alone.
#pragma once

#include <cstdint>
#include <span>

#include "sfsdp/plan/memory_plan.h"

namespace sfsdp::plan {

// Most bytes that are alive at once, and the first position where they are.
struct Peak {
  int64_t bytes = 0;
  int64_t position = 0;
};
Peak live_peak(std::span<const Buffer> buffers);

// Writes each buffer's offset; what lives at one position is disjoint. The same on every rank.
//   enough: an arena of so many bytes is not made smaller
//   returns: bytes of the arena, at least live_peak
int64_t assign_offsets(std::span<Buffer> buffers, int64_t enough = 0);

}  // namespace sfsdp::plan
