// SPDX-License-Identifier: BSD-3-Clause
// What:   says which ops one kernel computes: kernel=N on each, numbered in order; an op without it moves no data, is a
//         collective or is given. Ops of a kernel stand side by side, but for views between them.
// Why:    what stays inside a kernel has no memory and costs no bytes. Costs, memory and the simulator read this attribute;
//         none of them decides again.
// Rule:   a kernel is one of
//           product, attention, library   one op of class Product, Attention or Alone; to a product pointwise ops may follow, each of one
//                                         result of several (join_products), or of all where they are as wide
//           pointwise                     ops on as many elements, each read where it was made
//           row                           the same with reductions over the last dimensions, of one width; what is one
//                                         number per row may be read in the row
//           column                        a reduction over other dimensions: its result is complete only after the kernel
//           copy                          a pack, with the casts that it alone reads, and the sum over micro-batches that
//                                         alone reads it: gradients are added where they lie, 10 bytes a parameter, not 18
//           optimizer                     an update, with what scales its gradient
//         What an op reads says its access map (ir/access.h). An op without a map, or that reads other places, is alone.
//         What shares no work is no kernel: other sizes, a scale of another update's gradient, what reads nothing of the product. Later
//         passes add casts into the dtype in which a kernel writes a result, be it a sum over rows (write_in_buckets).
//         A row is read whole before it is written, which a product's tiles and what is made of them are not. No op of a kernel reads what
//         another row, column or block of that kernel makes. A start or a wait ends kernels; what runs once a step has its own.
//         plan/verify/kernels.h holds any graph against this rule.
// Needs:  the final order of collectives.
// Leaves: each op that computes has a kernel.
#pragma once

#include <cstdint>

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

enum class FuseScope : uint8_t {
  None,    // a kernel per op: eager; the copy into a bucket casts on its way there too
  Module,  // within one block (layers.3), products alone: what torch.compile of each block makes
  All,
};

struct FuseOptions {
  FuseScope scope = FuseScope::All;

  static const std::vector<Field<FuseOptions>>& fields();
};

bool fuse(ir::Graph& graph, const FuseOptions& options, PassContext& ctx);

}  // namespace sfsdp::passes
