// SPDX-License-Identifier: BSD-3-Clause
// What:   says which ops one kernel computes: kernel=N on each, numbered in order; an op without it moves no data, is a
//         collective or is given. Ops of a kernel stand side by side, but for views between them.
// Why:    what stays inside a kernel has no memory and costs no bytes. Costs, memory and the simulator read this attribute;
//         none of them decides again.
// Rule:   a kernel is one of
//           product       one op of class Product, and pointwise ops after it. A product of several results (join_products) is
//                         followed by ops that read one of them each, or, where all are as wide, any of them
//           attention, library   one op of class Attention or Alone, by itself
//           pointwise     ops on as many elements, each read where it was made
//           row           the same, and reductions over the last dimensions, all of one width. A number per row may be read by the row
//           column        a reduction over other dimensions: its result is complete only after the kernel
//           copy          a pack, the casts that it alone reads, and the sum over micro-batches that it alone reads: gradients are
//                         added where they lie, for 10 bytes a parameter instead of 18
//           optimizer     an update, and the scaling of its gradient
//         What an op reads, its access map says (ir/access.h). An op without a map is by itself, and so is one that reads other places.
//         Ops join where they share work. These do not: ops of different sizes; an update and the scaling of another one's gradient;
//         a product and an op that reads nothing of it.
//         No row op follows a product in its kernel: a row is read whole before it is written, and a product writes tiles.
//         No op reads what another row, column or block of its kernel makes.
//         A start or a wait ends a kernel. What runs once a step joins nothing that each micro-batch runs.
//         Later passes add casts to a kernel, into the dtype in which it writes a result (write_in_buckets).
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
