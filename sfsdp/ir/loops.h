// SPDX-License-Identifier: BSD-3-Clause
// Ranges of ops that run as often as a number in memory says. The ops between `loop` and its `end` are the body:
//
//   %i.x = loop %n, %x donates=[1] at_most=16 : f32[8]
//   %b = aten.mul.Scalar %i.x other=0.5 : f32[8]
//   %s = store %i.x, %b donates=[0] : f32[8]
//   %y = end %s donates=[0] : f32[8]
//
// %n is read once, when the loop begins. What is carried has a name for each of its states: %x before the loop, %i.x where a trip
// begins, %s where it ends, %y after the last one. Without a trip %y is %x. `when` is a loop of at most one trip, whose number
// may be a b1 too. Loops do not stand in others: no program that is foreseen needs it, and the hazards of a body would have to be
// held against each trip of the outer one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "sfsdp/ir/diagnostic.h"
#include "sfsdp/ir/graph.h"

namespace sfsdp::ir {

// The most trips that a text may ask for.
inline constexpr int64_t kMostTrips = int64_t{1} << 20;

struct Loop {
  const Op* begin = nullptr;  // `loop` or `when`
  const Op* end = nullptr;
  size_t first = 0, last = 0;  // their positions
  bool has(size_t position) const { return first < position && position < last; }
};

bool is_loop(const Op& op);  // loop or when
int64_t most_trips(const Op& loop);

// In the graph's order; a loop without its end is none.
std::vector<Loop> loops_of(const Graph& graph);
// The loop whose body has the op at `position`; nullptr: none.
const Loop* loop_around(const std::vector<Loop>& loops, size_t position);

// What is wrong with the loops of a graph whose ops are sound one by one, with the op that shows it.
std::vector<std::pair<const Op*, Diagnostic>> check_loops(const Graph& graph);

}  // namespace sfsdp::ir
