// SPDX-License-Identifier: BSD-3-Clause
// Which positions of a sequence each rank has, where an axis cuts it into parts: attention of a part (sdpa with axis=) compares positions.
//
// In natural order rank r has the r-th of as many equal parts. Under a causal mask a late query sees more keys than an early one, so the
// last rank would work longest. Balanced ("head-tail"), the sequence is cut into twice as many chunks, and rank r has chunk r and then
// the r-th from the end: what its queries see is as much for every rank.
#pragma once

#include <cstdint>
#include <vector>

namespace sfsdp::ir {

class Op;

// Positions first to first + count - 1.
struct PositionRun {
  int64_t first = 0, count = 0;
  bool operator==(const PositionRun&) const = default;
};

// A sequence of `length` tokens over `ranks` ranks.
struct SequenceCut {
  int64_t length = 1, ranks = 1;
  bool balanced = false;
  // Equal parts that it is cut into, of which a rank has one, or two.
  int64_t chunks() const { return balanced ? 2 * ranks : ranks; }
};

// How the sequence of an attention is cut that has axis=, of so many ranks: each has as many queries.
SequenceCut sequence_cut(const Op& op, int64_t ranks);

// Whose keys the rank attends to, of an attention with shift=: those of the rank that stands so many before it.
int64_t rank_of_keys(const Op& op, int64_t rank, int64_t ranks);

// The positions of the rank's rows, in their order: one run, or two that do not touch.
//   cut:  chunks() divides length
//   rank: 0 to ranks - 1
std::vector<PositionRun> positions_of_rank(const SequenceCut& cut, int64_t rank);

// The balanced order as a list: which of the 2 · ranks chunks in natural order stands at place i, where the ranks' rows stand one
// after the other: {0, 2R-1, 1, 2R-2, ...}.
std::vector<int64_t> chunk_order(int64_t ranks);

}  // namespace sfsdp::ir
