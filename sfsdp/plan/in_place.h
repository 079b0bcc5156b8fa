// SPDX-License-Identifier: BSD-3-Clause
// Results that need no memory of their own: they are written over what their kernel is the last to read.
#pragma once

#include <unordered_map>
#include <vector>

#include "sfsdp/cost/kernels.h"
#include "sfsdp/ir/graph.h"
#include "sfsdp/plan/memory_plan.h"

namespace sfsdp::plan {

// A result takes the memory of an operand where its kernel reads the operand's elements only at the places at which it
// writes the result's, or rows that it reads whole before it writes them, by the ops' access maps (ir/access.h), and what
// follows a product. Both have as many elements, of one size. A cast to another size is none: threads would write over what
// others are to read. Nor is a result that is complete only after all rows.
//   index: the buffer of each value that has memory
//   buffers: those that are taken over live on to the last reader of what is written over them; of what needs no buffer
//            any more, bytes are 0
std::vector<Inside> write_over_last_reads(const ir::Graph& graph, const cost::Kernels& kernels,
                                          const std::unordered_map<const ir::Value*, size_t>& index,
                                          std::vector<Buffer>& buffers);

}  // namespace sfsdp::plan
