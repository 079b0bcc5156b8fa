// SPDX-License-Identifier: BSD-3-Clause
// What:   stores the parameters of a unit as one flat shard per rank: one gather per use region, whose result the
//         parameters are views of, one packed reduction of their gradients, one update.
// Why:    a collective per parameter is mostly latency; and where storage is flat from the start, no copy into and out
//         of send buffers is needed, which is what other implementations pay (docs/architecture.md, section 5).
//         Members of one group= (group_weights) lie side by side without padding.
// Needs:  unit= on params (pass wrap), a step as data parallelism and the optimizer left it: one materialisation per
//         use region, one gradient and one update per trained parameter.
// Leaves: per unit and kind one param with members=, offsets=, numels=, shapes in the views; gathers give the same
//         bits, reductions too where the number of ranks decides the order of their sums.
// Source: SimpleFSDP, arXiv:2411.00284, section 4 (bucketing); FSDP2's parameter groups.
#pragma once

#include <cstdint>

#include "sfsdp/ir/graph.h"
#include "sfsdp/passes/pass.h"

namespace sfsdp::passes {

struct BucketOptions {
  int64_t alignment = 256;  // bytes, of each parameter in its bucket and of each rank's shard

  static const std::vector<Field<BucketOptions>>& fields();
};

// With PassContext::layout, buckets are those; units and alignment are not read then.
//   throws: UserError where the graph does not fit that layout: a gradient that some members of a bucket lack
bool bucket(ir::Graph& graph, const BucketOptions& options, PassContext& ctx);

}  // namespace sfsdp::passes
