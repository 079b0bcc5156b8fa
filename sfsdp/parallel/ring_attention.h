// SPDX-License-Identifier: BSD-3-Clause
// Attention whose keys and values go round: each rank attends to its own, then to those of the rank before it, and so on, and puts together
// what these give. A rank never has more than two ranks' keys and values at once.
// Source: Ring Attention, arXiv:2310.01889; each part straight from its owner, as TorchTitan's rotate method alltoall has it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sfsdp/ir/builder.h"
#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/placement.h"
#include "sfsdp/mesh/device_mesh.h"
#include "sfsdp/parallel/context_parallel.h"
#include "sfsdp/parallel/localise.h"
#include "sfsdp/parallel/op_cuts.h"

namespace sfsdp::parallel {

// Why attention, forward or backward, cannot go round, as "is not causal"; "": it can.
std::string why_no_ring(const ir::Op& op);

// sdpa, causal, of queries that are cut in the sequence and as many keys, and sdpa_backward of such: all but documents is cut so.
// nullopt: the op is none of these, or its queries are not cut.
//   throws: UserError where queries are cut of an attention that cannot go round: not causal, with a mask or dropout, of other keys
std::optional<OpCut> ring_cut_of(const ir::Op& op, const std::vector<ir::Placement>& operands);

// Makes of `op`, whose operands lie as ring_cut_of says, attention to the rank's own keys, and puts after it, for each rank before in
// turn: two permutes of keys and values, attention to them, and what adds that up. Backward has two more permutes, which bring
// gradients home. All in float32 or wider until the end.
//   op:      of the whole's sizes; its operands are those that lie so
//   returns: what readers read in place of each result
std::vector<ir::Value*> make_ring(ir::Builder& build, ir::Op& op, const MeshAxis& axis,
                                  const ContextParallelOptions& options, Placements& placements);

}  // namespace sfsdp::parallel
