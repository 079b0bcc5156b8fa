// SPDX-License-Identifier: BSD-3-Clause
// What:   packs gradients that are summed over an axis of tensor parallelism, those of small weights that all its ranks have (norms,
//         biases), so that one all_reduce a step sums them all, in place of one a unit.
// Why:    each of them is mostly latency, and stands in the way of what blocks send over the same ranks in backward.
// Needs:  buckets (pass bucket), whose sums stand in the tail as data parallelism left them, as blocking collectives.
// Leaves: of each list of axes and dtype one all_reduce of what is small: of copies of the buckets' gradients, side by side. A bucket's
//         sum is a view of the result. The same bits: each element is summed over the same ranks in the same order. What is larger
//         than max_bytes is summed by itself, under backward; what ranks of experts have, by boxes, too.
#pragma once

#include <cstdint>

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

struct PackAllReducesOptions {
  // All shares of a bucket's gradient together, so that a model's sums are the same ones on all meshes, as tune/scaled_step.h takes them to
  // be. An all_reduce of 1 MiB over 8 H100 takes 26 us, one of nothing 19 (machines/dgx_h100.toml); what is packed comes after backward.
  int64_t max_bytes = 1 << 20;

  static const std::vector<Field<PackAllReducesOptions>>& fields();
};

bool pack_all_reduces(ir::Graph& graph, const PackAllReducesOptions& options, PassContext& ctx);

}  // namespace sfsdp::passes
