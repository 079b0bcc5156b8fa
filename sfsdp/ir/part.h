// SPDX-License-Identifier: BSD-3-Clause
// The parts of a step: Head, then forward, loss and backward of each micro-batch (Body, of the last one Last, which also has
// what runs once), then Tail.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::ir {

enum class Part : uint8_t { Head, Body, Last, Tail };
inline constexpr size_t kParts = 4;

// Last for what micro-batches run.
constexpr Part part_of(Section section) {
  if (section == Section::Init) return Part::Head;
  return is_repeated(section) ? Part::Last : Part::Tail;
}

inline bool runs_in(const Op& op, Part part) {
  return part == part_of(op.section) || (part == Part::Body && is_repeated(op));
}

}  // namespace sfsdp::ir
