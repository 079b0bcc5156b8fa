// SPDX-License-Identifier: BSD-3-Clause
// How ops over a vocabulary are cut, by their names: a lookup of rows by index, and the loss of logits of which each rank has some columns.
// Their maps say that rows are picked by index and that a row of logits is read whole, so that op_cuts.h would gather.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sfsdp/ir/builder.h"
#include "sfsdp/ir/graph.h"
#include "sfsdp/ir/placement.h"
#include "sfsdp/parallel/localise.h"
#include "sfsdp/parallel/op_cuts.h"

namespace sfsdp::parallel {

// Tables cut in their rows, and logits cut in their classes:
//   embedding              the rank's rows, zeros for others' ids: a summand
//   embedding_backward     of an embedding that is cut so: the gradient of the rank's rows, of whole gradients
//   cross_entropy          where loss_parallel: three numbers a token from each rank, of which all make the loss
//   cross_entropy_backward of such a loss: of the rank's columns
// nullopt: the op is none of these, or its operands are not cut so.
//   forward_is_cut: of the op that forward_of_vocabulary says
//   only:           set where the op cannot be done in another way
struct VocabularyCut {
  OpCut way;
  bool only = false;
};
std::optional<VocabularyCut> vocabulary_cut_of(const ir::Op& op, const std::vector<ir::Placement>& operands,
                                               bool loss_parallel, bool forward_is_cut);
// The lookup or loss whose backward the op is; nullptr: it is none.
const ir::Op* forward_of_vocabulary(const ir::Op& op);

// Makes `op` what it is on a rank, its operands lying as the cut says: axis= in place, or the parts of a loss before it.
void lower_to_own_part(ir::Op& op, const ir::Builder::Place& before, const MeshAxis& axis, Placements& placements);

}  // namespace sfsdp::parallel
