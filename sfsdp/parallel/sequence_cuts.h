// SPDX-License-Identifier: BSD-3-Clause
// How ops are cut over an axis that cuts the sequence, by their names: attention, whose queries see keys of all ranks, and losses
// over all tokens. Their maps say that causal attention compares places, and that a mean counts what there is, so that
// op_cuts.h would gather.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/placement.h"
#include "sfsdp/parallel/context_parallel.h"
#include "sfsdp/parallel/op_cuts.h"

namespace sfsdp::parallel {

//   sdpa, causal, of as many keys as queries   the rank's queries, and keys, values and documents of the whole sequence
//   sdpa_backward        the same, whose gradients of keys and values are summands
//   cross_entropy, cross_entropy_of_parts   that reduce: the sum over the rank's rows, and their count, are summands
//   embedding_backward   of the rank's tokens: a summand
// nullopt: the op is none of these, or its operands are not cut so.
std::optional<OpCut> sequence_cut_of(const ir::Op& op, const std::vector<ir::Placement>& operands);

// sdpa and sdpa_backward of a part of the heads, of all queries and keys, where the queries are cut in the sequence.
//   blocks: in as many ranges of heads each rank has a part, so that an axis inside may cut whole ranges
// nullopt: the op is none of these, or ranks and blocks do not divide its heads.
std::optional<OpCut> head_cut_of(const ir::Op& op, int64_t ranks, int64_t blocks);

// Why ranks cannot have equal parts of an attention's heads, as "has 2 heads of keys and values, of which cp = 4 ranks cannot have
// equal parts"; "": they can.
//   inner: ranks of the axis that cuts whole ranges of heads
std::string why_no_heads(const ir::Op& op, const MeshAxis& axis, int64_t inner);

// Where there is none that was asked for.
//   mesh:  of which `axis` is one
//   inner: ranks of the axis that cuts whole ranges of heads
//   throws: UserError naming the op, its heads and how many of the mesh's ranks could have equal parts of them
[[noreturn]] void throw_no_heads(const ir::Op& op, const std::vector<MeshAxis>& mesh, const MeshAxis& axis,
                                 int64_t inner);

// Makes `op` what it is on a rank: axis= of an attention, the sum in place of a mean.
void lower_to_own_tokens(ir::Op& op, const MeshAxis& axis, const ContextParallelOptions& options);

// Whether the op is a mean over rows, which the sum over the axis then has to be divided for.
bool is_mean_of_rows(const ir::Op& op);

}  // namespace sfsdp::parallel
