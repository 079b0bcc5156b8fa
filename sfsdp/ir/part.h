// SPDX-License-Identifier: BSD-3-Clause
// The parts of a step: Head, then forward, loss and backward of each micro-batch, then Tail. Micro-batches come in three
// variants: First, whose `accumulate` ops begin a sum (beta 0), Middle, whose add to it (beta 1), and Last, whose add to it and
// which also has what runs once. Sums are buffers that are carried from one micro-batch to the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/opset.h"

namespace sfsdp::ir {

constexpr bool is_forward(Section section) { return section == Section::Fwd || section == Section::Loss; }

enum class Part : uint8_t { Head, First, Middle, Last, Tail };
inline constexpr size_t kParts = 5;

// Last for what micro-batches run.
constexpr Part part_of(Section section) {
  if (section == Section::Init) return Part::Head;
  return is_repeated(section) ? Part::Last : Part::Tail;
}

inline bool runs_in(const Op& op, Part part) {
  return part == part_of(op.section) || ((part == Part::First || part == Part::Middle) && is_repeated(op));
}

// Head, a variant for each micro-batch, Tail. The only micro-batch is a Last: its graph has no sums.
inline std::vector<Part> parts_of_step(int64_t micro_batches) {
  std::vector<Part> parts = {Part::Head};
  for (int64_t m = 1; m < micro_batches; ++m) parts.push_back(m == 1 ? Part::First : Part::Middle);
  parts.insert(parts.end(), {Part::Last, Part::Tail});
  return parts;
}

// What `accumulate` multiplies the sum so far with. 0: it does not read its buffer.
constexpr int beta_in(Part part) { return part == Part::First ? 0 : 1; }

}  // namespace sfsdp::ir
