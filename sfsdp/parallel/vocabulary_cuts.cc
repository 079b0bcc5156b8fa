// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/parallel/vocabulary_cuts.h"

#include <string>

#include "sfsdp/parallel/placement_kinds.h"
#include "sfsdp/parallel/redistribute.h"

namespace sfsdp::parallel {
namespace {

using ir::Op, ir::Placement, ir::Type, ir::Value;

// All operands whole but the one that is cut.
VocabularyCut cut(const Op& op, int operand, const Placement& lies, const Placement& result, bool only) {
  VocabularyCut made{.way = {.operands = std::vector<std::optional<Placement>>(op.operands.size(), kWhole),
                             .results = std::vector<Placement>(op.results().size(), result)},
                     .only = only};
  if (operand >= 0) made.way.operands[static_cast<size_t>(operand)] = lies;
  return made;
}

// What each rank knows of its classes in every row, in the order of the ranks.
Value* gathered_parts(const Op& op, const ir::Builder::Place& before, const MeshAxis& axis, Placements& placements) {
  const Type& logits = op.operands[0]->type();
  Type type = Type::tensor(ir::wide(logits.dtype), {3 * axis.size, logits.dims[0].size});
  type.dims[1] = logits.dims[0];  // rows may be cut over another axis
  ir::Attrs attrs = {{"axis", axis.name}};
  if (const auto ignored = op.attrs.find("ignore_index"); ignored != op.attrs.end())
    attrs["ignore_index"] = ignored->second;
  if (const auto classes = op.attrs.find("classes"); classes != op.attrs.end()) attrs["classes"] = classes->second;
  Value* parts = before.value("cross_entropy_parts", {op.operands[0], op.operands[1]}, type,
                              op.result()->name() + ".parts", std::move(attrs));
  placements[parts] = Placement::shard(0);
  return redistribute(before, parts, axis, Placement::shard(0), kWhole, placements);
}

}  // namespace

std::optional<VocabularyCut> vocabulary_cut_of(const Op& op, const std::vector<Placement>& operands, bool loss_parallel,
                                               bool forward_is_cut) {
  const Placement rows = Placement::shard(0), classes = Placement::shard(1);
  if (op.is("embedding") && operands[0] == rows) return cut(op, 0, rows, kSum, false);
  if (op.is("embedding_backward") && forward_is_cut) return cut(op, -1, kWhole, rows, true);
  if (op.is("cross_entropy") && loss_parallel && operands[0] == classes) return cut(op, 0, classes, kWhole, false);
  if (op.is("cross_entropy_backward") && forward_is_cut) return cut(op, 1, classes, classes, true);
  return std::nullopt;
}

const Op* forward_of_vocabulary(const Op& op) {
  if (op.is("embedding_backward")) return op.bwd_of;
  return op.is("cross_entropy_backward") ? op.operands[4]->producer() : nullptr;
}

void lower_to_own_part(Op& op, const ir::Builder::Place& before, const MeshAxis& axis, Placements& placements) {
  if (!op.is("cross_entropy")) {
    op.attrs["axis"] = axis.name;
    return;
  }
  Value* parts = gathered_parts(op, before, axis, placements);
  op.opcode = "cross_entropy_of_parts";
  op.operands[0] = parts;
  op.attrs.erase("in_dtype");
  op.attrs.erase("classes");
  Type log_sums = op.result(2)->type();
  log_sums.dtype = parts->type().dtype;
  op.result(2)->set_type(log_sums);
}

}  // namespace sfsdp::parallel
