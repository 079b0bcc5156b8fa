// SPDX-License-Identifier: BSD-3-Clause
// Results that need no memory of their own: they are written over what their kernel is the last to read.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "sfsdp/cost/kernels.h"
#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/side_table.h"
#include "sfsdp/plan/memory_plan.h"

namespace sfsdp::plan {

// Why a result is not written over what its kernel reads, in the order in which it is asked.
enum class NotOver : uint8_t {
  No,  // it is
  // of the result
  KernelOfOthers,
  CarriedSum,
  AfterAllRows,
  NothingToTake,
  // of the operand that comes nearest
  OtherSize,
  Taken,
  Kept,
  NextMicroBatch,
  ReadElsewhere,
};
inline constexpr size_t kNotOvers = static_cast<size_t>(NotOver::ReadElsewhere) + 1;
// "an op of the kernel reads it at other places than it writes"
std::string_view to_string(NotOver why);

// A result that has memory of its own.
struct OwnMemory {
  const ir::Value* result = nullptr;
  const ir::Value* operand = nullptr;  // whose memory it might have had; nullptr: none
  NotOver why = NotOver::No;
};

inline constexpr size_t kNoBuffer = std::numeric_limits<size_t>::max();

// A result takes the memory of an operand where its kernel reads the operand's elements only at the places at which it
// writes the result's, or rows that it reads whole before it writes them, by the ops' access maps (ir/access.h), and what
// follows a product. Both have as many elements, of one size. A cast to another size is none: threads would write over what
// others are to read. Nor is a result that is complete only after all rows.
//   index: the buffer of each value that has memory, kNoBuffer of others
//   buffers: those that are taken over live on to the last reader of what is written over them; of what needs no buffer
//            any more, bytes are 0
//   own: takes the results that lie over nothing, in the graph's order; nullptr: nobody asks
std::vector<Inside> write_over_last_reads(const ir::Graph& graph, const cost::Kernels& kernels,
                                          const ir::ValueTable<size_t>& index, std::vector<Buffer>& buffers,
                                          std::vector<OwnMemory>* own = nullptr);

}  // namespace sfsdp::plan
