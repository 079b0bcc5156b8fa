// SPDX-License-Identifier: BSD-3-Clause
// Where gathers start and reductions are waited for: the one place of these rules, for the passes that move the ops and
// for tune/, which times schedules without a graph.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/options.h"

namespace sfsdp::passes {

enum class Side : uint8_t { Before, After };
const Words<Side>& side_words();  // "before", "after"

// What a unit may have of its own, as attributes of its params; what they do not say, a pass's options do.
struct UnitSchedule {
  // A gather starts this many gathers ahead, before or after that one's wait; 0: where it is needed.
  int64_t forward_depth = 1, backward_depth = 1;
  Side forward = Side::Before, backward = Side::After;
  // A reduction is waited for at the one this many later, before or after its start; 0: where it starts.
  int64_t sink_depth = 1;
  Side sink = Side::Before;
  bool operator==(const UnitSchedule&) const = default;
};

void write_schedule(ir::Op& param, const UnitSchedule& schedule);
// param: nullptr: `fallback`
UnitSchedule read_schedule(const ir::Op* param, UnitSchedule fallback);

// Where one op goes, among those of its kind in the order in which they are needed.
struct Place {
  enum class Where : uint8_t { Stays, Moves, ToEnd };
  Where where = Where::Stays;
  size_t target = 0;  // Moves: the op whose wait (of a gather) or start (of a reduction) it goes to
  Side side = Side::Before;
};

// Where the start of gather `i` of a section goes.
//   max_bytes: of gathers in flight besides the one that is needed next; 0: no bound
//   bytes: of gather k
template <class Bytes>
Place gather_place(size_t i, int64_t depth, Side side, int64_t max_bytes, const Bytes& bytes) {
  size_t target = i - std::min(i, static_cast<size_t>(depth));
  if (max_bytes > 0) {
    int64_t in_flight = 0;
    for (size_t k = target + 1; k <= i; ++k) in_flight += bytes(k);
    for (; target < i && in_flight > max_bytes; ++target) in_flight -= bytes(target + 1);
  }
  return target == i ? Place{} : Place{Place::Where::Moves, target, side};
}

// The first gather of backward starts where backward begins: it computes with the unit that forward has kept for it.
inline bool starts_with_backward(size_t i, int64_t depth) { return i == 0 && depth > 0; }

// Where the wait of reduction `i` of `count` goes.
inline Place wait_place(size_t i, size_t count, int64_t depth, Side side) {
  if (depth == 0) return {};
  const size_t target = i + static_cast<size_t>(depth);
  return target < count ? Place{Place::Where::Moves, target, side} : Place{Place::Where::ToEnd};
}

}  // namespace sfsdp::passes
